#!/usr/bin/env python3
"""The library used from Python: text -> records -> a BERT -> a classifier, in one process.

Each call does what the script of its name does, and its arguments are the script's flags: called
again in the same folder, it resumes or says that it is finished. What the scripts print goes to
Python's logging. library.ipynb is the same as a notebook.
"""

import logging
import pathlib
import sys

import bert_gpu

bert_gpu.prepare()  # before TensorFlow is imported: the numbers and the speed of the scripts


def main(folder, num_train_steps):
    folder = pathlib.Path(folder)
    bert_gpu.create_pretraining_data(output_dir=folder / "data", vocab_size=1000, max_seq_length=64)
    results = {}
    for learning_rate in (3e-4, 1e-3):
        pretrained = bert_gpu.run_pretraining(
            input_file=folder / "data",
            output_dir=folder / f"pretrain-{learning_rate:g}",
            model="tiny",
            norm_first=True,
            hidden_dropout_prob=0.0,
            learning_rate=learning_rate,
            train_batch_size=16,
            num_train_steps=num_train_steps,
        )
        fine_tuned = bert_gpu.run_classifier(
            init_checkpoint=pretrained.folder.model,
            output_dir=folder / f"pairs-{learning_rate:g}",
            max_seq_length=64,
            num_train_steps=num_train_steps,
        )
        loss, accuracy = pretrained.progress.best_metric, fine_tuned.metrics["dev"]["accuracy"]
        results[learning_rate] = (loss, accuracy)
    print("learning rate   validation loss   accuracy on pairs")
    for learning_rate, (loss, accuracy) in results.items():
        print(f"{learning_rate:<13g}   {loss:>15.3f}   {accuracy:>17.3f}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(*(sys.argv[1:2] or ["library"]), int((sys.argv[2:] or ["300"])[0]))
