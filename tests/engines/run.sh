#!/usr/bin/env bash
# Serve conversations on real engines through the gateway and say what the engines found in their caches.
#   run.sh                      short form: made conversations, every policy, zero errors expected; then what the
#                               gateway believed to be cached against what the engines found (belief.py)
#   DATA=DIR run.sh             recorded conversations from DIR (agentperf, tau-bench) instead
#                               and on llama.cpp three agents that pull, of which some are killed (pull.py; PULL=0: not)
# Environment: ENGINES ("llamacpp vllm"), LLAMACPP_REPLICAS (3), VLLM_REPLICAS (2), MAITRED (the binary; else built),
# PULL (1; `only`: nothing else),
# KEEP_ENGINES=1 leaves the replicas running; and what start_llamacpp.sh and start_vllm.sh read.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
top="$(cd "$here/../.." && pwd)"
source "$here/replicas.sh"
if [ -z "${MAITRED:-}" ]; then
  cargo build --locked --release --manifest-path "$top/Cargo.toml" -p maitred
  MAITRED="${CARGO_TARGET_DIR:-$top/target}/release/maitred"
fi
ensure_tools
if [ ! -e "$ENGINES_DIR/client/.ok" ]; then
  say "installing the OpenAI client"
  "$(find_python)" -m venv "$ENGINES_DIR/client"
  uv_pip client openai==2.* zstandard==0.25.0
  touch "$ENGINES_DIR/client/.ok"
fi

work="$(mktemp -d)"
gateway_pid=""
started=()
finish() {
  [ -z "$gateway_pid" ] || kill "$gateway_pid" 2>/dev/null || true
  [ "${KEEP_ENGINES:-0}" = 1 ] || [ "${#started[@]}" = 0 ] || "$here/stop.sh" "${started[@]}" || true
  rm -rf "$work"
}
trap finish EXIT

# Where the vLLM replica at this URL publishes its KV events, as a worker's setting.
kv_events_of() {
  sed -n "s|.*\"url\":\"$1\".*\"kv_events\":\"\([^\"]*\)\",\"kv_replay\":\"\([^\"]*\)\".*|        kv_events: { endpoint: '\1', replay: '\2' }|p" "$RUN"/vllm-*.json
}

# serve FILE LOG URL: the gateway with this configuration, until that URL is good.
serve() {
  "$MAITRED" check "$1"
  "$MAITRED" serve --config "$1" > "$2" 2>&1 &
  gateway_pid=$!
  local end=$((SECONDS + 60))
  until curl -fsS -o /dev/null --max-time 2 "$3" 2>/dev/null; do
    kill -0 "$gateway_pid" 2>/dev/null || { cat "$2" >&2; die "the gateway ended"; }
    [ "$SECONDS" -lt "$end" ] || { cat "$2" >&2; die "the gateway was not ready in 60 s"; }
    sleep 0.2
  done
}
stop_gateway() { kill "$gateway_pid"; wait "$gateway_pid" || true; gateway_pid=""; }

# Three agents beside the llama.cpp replicas, and a gateway that knows of workers only what asks it.
pull_round() {
  local port="${GATEWAY_PORT:-8700}" admin="${ADMIN_PORT:-8701}" broker="${PULL_PORT:-8702}" name pid url agents=()
  printf 'of-the-engines' > "$work/token"
  {
    printf 'listen: 127.0.0.1:%s\nadmin: 127.0.0.1:%s\nexpose: true\n' "$port" "$admin"
    printf 'pull:\n  listen: 127.0.0.1:%s\n  tokens: [{ owner: engines, token: of-the-engines }]\n  horde: { wait: 1s }\n' "$broker"
    printf 'pools:\n  - name: default\n    model: tiny-llama\n    policy: round_robin\n    identity: { model_dir: %s }\n' "$ENGINES_DIR/tiny-llama"
  } > "$work/pull.yaml"
  serve "$work/pull.yaml" "$work/pull.log" "http://127.0.0.1:$admin/health"
  while read -r url; do
    name="llamacpp-${#agents[@]}" pid="$(pid_of "llamacpp-${#agents[@]}")"
    agents+=("$name=$url=$pid")
  done < "$work/urls"
  echo "## ${#agents[@]} agents that pull"
  "$ENGINES_DIR/client/bin/python" "$here/pull.py" --maitred "$MAITRED" --gateway "http://127.0.0.1:$port" \
    --admin "http://127.0.0.1:$admin" --broker "http://127.0.0.1:$broker" --token-file "$work/token" \
    "${agents[@]/#/--engine=}" || { status=1; tail -n 20 "$work/pull.log" >&2; }
  stop_gateway
}

status=0
for engine in ${ENGINES:-llamacpp vllm}; do
  case "$engine" in
    llamacpp) replicas="${LLAMACPP_REPLICAS:-3}" ;;
    vllm) replicas="${VLLM_REPLICAS:-2}" ;;
    *) die "ENGINES names llamacpp, vllm or both" ;;
  esac
  started+=("$engine")
  "$here/start_$engine.sh" "$replicas" > "$work/urls"
  if [ "${PULL:-1}" = only ]; then
    [ "$engine" != llamacpp ] || pull_round
    continue
  fi
  port="${GATEWAY_PORT:-8700}" admin="${ADMIN_PORT:-8701}"
  {
    printf 'listen: 127.0.0.1:%s\nadmin: 127.0.0.1:%s\nexpose: true\nrecords:\n  dir: %s\n' "$port" "$admin" "$work/records-$engine"
    printf 'pools:\n  - name: default\n    model: tiny-llama\n    policy: session\n'
    # The same template and tokenizer as the engines have, so that chats are known by their tokens, too.
    printf '    identity: { model_dir: %s }\n    workers:\n' "$ENGINES_DIR/tiny-llama"
    while read -r url; do
      printf '      - url: %s\n' "$url"
      if [ "$engine" = vllm ] && [ "${KV_MODE:-bind}" = bind ]; then kv_events_of "$url"; fi
    done < "$work/urls"
  } > "$work/$engine.yaml"
  serve "$work/$engine.yaml" "$work/$engine.log" "http://127.0.0.1:$port/health"
  echo "## $engine, $replicas replicas"
  "$ENGINES_DIR/client/bin/python" "$here/converse.py" --gateway "http://127.0.0.1:$port" --admin "http://127.0.0.1:$admin" \
    --model tiny-llama ${DATA:+--data "$DATA"} ${CONVERSE_ARGS:-} || { status=1; tail -n 20 "$work/$engine.log" >&2; }
  belief=(--requests 120 --longest 1400 --conversations 8 --clients 3)
  if [ "$engine" = vllm ]; then
    belief+=(--answer-ids --salts --target "${BELIEF_TARGET:-99}")
    [ "${VLLM_LORA:-0}" != 1 ] || belief+=(--adapter lora-a --adapter lora-b)
  fi
  belief=(--gateway "http://127.0.0.1:$port" --records "$work/records-$engine" --model tiny-llama "${belief[@]}")
  "$ENGINES_DIR/client/bin/python" "$here/belief.py" "${belief[@]}" ${BELIEF_ARGS:-} || { status=1; tail -n 20 "$work/$engine.log" >&2; }
  if [ "$engine" = vllm ]; then
    echo "chats"
    "$ENGINES_DIR/client/bin/python" "$here/belief.py" "${belief[@]}" --chat --tokens ${CHAT_ARGS:-} || { status=1; tail -n 20 "$work/$engine.log" >&2; }
  fi
  stop_gateway
  if [ "$engine" = llamacpp ] && [ "${PULL:-1}" != 0 ]; then pull_round; fi
done
[ "$status" = 0 ] && echo "test-engines: passed" || echo "test-engines: failed"
exit "$status"
