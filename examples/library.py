#!/usr/bin/env python3
"""The library used from Python: text -> records -> a BERT -> a classifier, in one process, with
settings instead of flags.

Each call does what the script of its name does: called again in the same folder, it resumes or says
that it is finished. What the scripts print goes to Python's logging.
"""

import logging
import pathlib
import sys

from bert_gpu import data, finetune, pretrain
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train.config import BatchConfig, CadenceConfig

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main(folder, num_train_steps):
    data.create_pretraining_data(
        data.DataConfig(
            input_file=str(ROOT / "sample_text.txt"),
            output_file=f"{folder}/data/sample.tfrecord",
            vocab_size=1000,
            max_seq_length=64,
        )
    )
    results = {}
    for learning_rate in (3e-4, 1e-3):
        pretrained = pretrain.pretrain(
            pretrain.PretrainSettings(
                run=pretrain.PretrainConfig(
                    output_dir=f"{folder}/pretrain-{learning_rate:g}", model="tiny"
                ),
                inputs=data.InputConfig(input_file=f"{folder}/data/*.tfrecord"),
                batch=BatchConfig(train_batch_size=16),
                optimizer=OptimizerConfig(learning_rate=learning_rate),
                cadence=CadenceConfig(num_train_steps=num_train_steps),
                architecture=dict(norm_first=True, hidden_dropout_prob=0.0),
            )
        )
        fine_tuned = finetune.finetune(
            finetune.FinetuneSettings(
                run=finetune.FinetuneConfig(
                    data_dir=str(ROOT / "examples" / "pairs"),
                    output_dir=f"{folder}/pairs-{learning_rate:g}",
                    max_seq_length=64,
                ),
                start=finetune.StartConfig(init_checkpoint=pretrained.folder.model),
                cadence=CadenceConfig(num_train_steps=num_train_steps),
            )
        )
        results[learning_rate] = (
            pretrained.progress.best_metric,
            fine_tuned.metrics["dev"]["accuracy"],
        )
    print("learning rate   validation loss   accuracy on pairs")
    for learning_rate, (loss, accuracy) in results.items():
        print(f"{learning_rate:<13g}   {loss:>15.3f}   {accuracy:>17.3f}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(*(sys.argv[1:2] or ["library"]), int((sys.argv[2:] or ["300"])[0]))
