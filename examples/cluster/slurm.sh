#!/bin/bash
# Pretrains on two nodes with all GPUs of each: sbatch examples/cluster/slurm.sh
# One task a node; the workers find each other by Slurm's variables, no TF_CONFIG is needed.
#SBATCH --job-name=bert
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# --kill-on-bad-exit ends what is left of a job of which one worker has ended badly; a job that Slurm
# starts again runs the same command, which resumes.
srun --kill-on-bad-exit=1 --distribution=block \
    python run_pretraining_gpu.py --input_file='data/*.tfrecord' --output_dir=runs/pretrain
