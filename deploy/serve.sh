#!/usr/bin/env bash
# Serve one model on the DCUs of this machine. Used by the systemd unit, the compose file and the container recipe.
# Variables: MODEL (needed), MAX_MODEL_LEN, HOST, PORT, DTK_ENV, VLLM_DCU_STATS_DIR; arguments go to `vllm serve` as they are.

# The vendor's env.sh reads unset variables and may end non-zero: it comes before `set -eu`, and without the modes of the caller's shell.
set +eu
set +o pipefail
declare +x SHELLOPTS
dtk_env=${DTK_ENV:-${ROCM_PATH:-/opt/dtk}/env.sh}
# An image may set ROCM_PATH and leave the rest to env.sh: it was sourced where a search path leads into the DTK.
case ":${LD_LIBRARY_PATH:-}" in
  *":${ROCM_PATH:-/opt/dtk}"*) ;;
  *)
    if [ -f "$dtk_env" ]; then
      # shellcheck disable=SC1090
      source "$dtk_env" || true
    fi
    ;;
esac
set -euo pipefail

if [ -z "${MODEL:-}" ]; then
  echo "error: MODEL is not set: the name or folder of the model to serve" >&2
  exit 2
fi
# vLLM refuses to start where these differ; an empty one counts as unset.
if [ -n "${HIP_VISIBLE_DEVICES:-}" ] && [ -n "${CUDA_VISIBLE_DEVICES:-}" ] && [ "$HIP_VISIBLE_DEVICES" != "$CUDA_VISIBLE_DEVICES" ]; then
  echo "error: HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ: unset CUDA_VISIBLE_DEVICES" >&2
  exit 2
fi
# The health check asks where HOST and PORT say: an address that only vLLM was told would never be found healthy.
for argument in "$@"; do
  case $argument in
    --host | --host=* | --port | --port=* | --uds | --uds=*)
      echo "error: ${argument%%=*} is given as an argument, which the health check does not see: set HOST and PORT instead" >&2
      exit 2
      ;;
  esac
done
address=$(python3 "$(dirname "$(readlink -f "$0")")/healthy.py" --address)
exec vllm serve "$MODEL" --dtype bfloat16 --max-model-len "${MAX_MODEL_LEN:-32768}" \
  --host "${address% *}" --port "${address#* }" "$@"
