# What start_vllm.sh, start_llamacpp.sh and stop.sh share.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ENGINES_DIR="${ENGINES_DIR:-$HOME/.cache/maitred-engines}"
RUN="$ENGINES_DIR/run"
LOG="$ENGINES_DIR/log"
mkdir -p "$ENGINES_DIR" "$RUN" "$LOG"
# Let Python keep compiled modules: without them each start of vLLM compiles thousands of files again.
unset PYTHONDONTWRITEBYTECODE
export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-600}"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 DO_NOT_TRACK=1

say() { echo "$*" >&2; }
die() { say "error: $*"; exit 1; }

# One installer at a time in this directory.
lock() { exec 9>"$ENGINES_DIR/lock"; flock 9; }
unlock() { flock -u 9; exec 9>&-; }

find_python() {
  local p
  for p in "${PYTHON:-}" python3.12 python3.11 python3.13 python3; do
    [ -n "$p" ] && command -v "$p" >/dev/null 2>&1 || continue
    "$p" -c 'import sys, venv, ensurepip; raise SystemExit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && { command -v "$p"; return; }
  done
  die "needs a Python 3.11 to 3.13 with venv (set PYTHON)"
}

# $ENGINES_DIR/tools: uv, and what make_tiny_model.py needs.
ensure_tools() {
  [ -e "$ENGINES_DIR/tools/.ok" ] && return
  say "installing tools"
  local py; py="$(find_python)"
  "$py" -m venv "$ENGINES_DIR/tools"
  "$ENGINES_DIR/tools/bin/python" -m pip install -q --disable-pip-version-check uv
  uv_pip tools numpy==2.3.5 safetensors==0.8.0 tokenizers==0.23.3 gguf==0.19.0
  touch "$ENGINES_DIR/tools/.ok"
}
uv_pip() { local v="$1"; shift; "$ENGINES_DIR/tools/bin/uv" pip install -q --python "$ENGINES_DIR/$v/bin/python" "$@"; }

ensure_tiny_model() {
  local stamp; stamp="$ENGINES_DIR/tiny-llama/.ok-$(cksum < "$HERE/make_tiny_model.py" | tr ' ' -)"
  [ -e "$stamp" ] && return
  say "making the tiny model"
  rm -rf "$ENGINES_DIR/tiny-llama"
  "$ENGINES_DIR/tools/bin/python" "$HERE/make_tiny_model.py" "$ENGINES_DIR/tiny-llama" --lora \
    --gguf "$ENGINES_DIR/tiny-llama.gguf" >/dev/null
  touch "$stamp"
}

start_time() { awk '{sub(/^.*\) /, ""); print $20}' "/proc/$1/stat" 2>/dev/null || true; }

# A process is ours only if the pid file's pid still has the start time noted in it.
is_ours() {
  local f="$RUN/$1.pid" pid st
  [ -s "$f" ] || return 1
  read -r pid st < "$f"
  [ -n "$pid" ] && [ -n "$st" ] && [ "$(start_time "$pid")" = "$st" ]
}
pid_of() { cut -d' ' -f1 "$RUN/$1.pid"; }

# launch NAME CMD...: a process group of its own, log in $LOG/NAME.log.
launch() {
  local name="$1"; shift
  setsid "$@" >"$LOG/$name.log" 2>&1 </dev/null 9>&- &
  local pid=$! i
  for i in 1 2 3 4 5; do [ -n "$(start_time "$pid")" ] && break; sleep 0.1; done
  echo "$pid $(start_time "$pid")" > "$RUN/$name.pid"
}

stop_one() {
  local name="$1" pid i
  if is_ours "$name"; then
    pid="$(pid_of "$name")"
    kill -TERM "$pid" 2>/dev/null || true
    for i in $(seq 1 200); do is_ours "$name" || break; sleep 0.1; done
    # What is left of its own process group (setsid: group id = pid), by id.
    if kill -0 -- "-$pid" 2>/dev/null; then sleep 1; kill -KILL -- "-$pid" 2>/dev/null || true; fi
    say "stopped $name (pid $pid)"
  fi
  rm -f "$RUN/$name.pid" "$RUN/$name.json" "$RUN/$name.args"
}

# wait_ready NAME URL SECONDS
wait_ready() {
  local name="$1" url="$2" end=$((SECONDS + $3))
  while [ "$SECONDS" -lt "$end" ]; do
    curl -fsS -o /dev/null --max-time 2 "$url" 2>/dev/null && return 0
    is_ours "$name" || { tail -n 25 "$LOG/$name.log" >&2; die "$name ended; see its log"; }
    sleep 0.5
  done
  die "$name was not ready in $3 s"
}

port_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
