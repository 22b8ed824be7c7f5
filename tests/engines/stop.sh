#!/usr/bin/env bash
# Stop the replicas that start_vllm.sh and start_llamacpp.sh started, and nothing else.
#   stop.sh [vllm | llamacpp | all | NAME...]      (NAME is like vllm-0; default all)
source "$(dirname "${BASH_SOURCE[0]}")/replicas.sh"
[ $# -gt 0 ] || set -- all
for what in "$@"; do
  case "$what" in
    all) pat='*' ;;
    vllm | llamacpp) pat="$what-*" ;;
    *) pat="$what" ;;
  esac
  for f in "$RUN"/$pat.pid; do
    [ -e "$f" ] || continue
    stop_one "$(basename "$f" .pid)"
  done
done
