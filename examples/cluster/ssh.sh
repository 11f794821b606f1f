#!/bin/bash
# Starts a worker on each of the hosts that the arguments name, the first of which is worker 0:
#   bash examples/cluster/ssh.sh node1 node2
# Every host has this folder under the same path, and the same Python environment.
set -euo pipefail

port=15000
command="python run_pretraining_gpu.py --input_file='data/*.tfrecord' --output_dir=runs/pretrain"

addresses=$(printf "\"%s:$port\"," "$@")
processes=()
for index in $(seq 0 $(($# - 1))); do
    host=${*:$((index + 1)):1}
    task="{\"cluster\": {\"worker\": [${addresses%,}]}, \"task\": {\"type\": \"worker\", \"index\": $index}}"
    ssh "$host" "cd $PWD && TF_CONFIG='$task' exec $command" > "worker-$index.log" 2>&1 &
    processes+=($!)
done
echo "worker 0 writes to worker-0.log"
code=0
for process in "${processes[@]}"; do
    wait "$process" || code=$?
done
exit $code
