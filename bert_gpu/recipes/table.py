"""The table of recipes: for each of the three scripts, the flags that repeat a published BERT, and
the source of every value.

Values that a source does not publish are chosen by us and marked so; `differs` lists what the
source does differently from bert-gpu.
"""

import dataclasses
from collections.abc import Mapping

OURS = "chosen by us"
QUICKLY = "chosen by us: dev/measurements.md, The first five minutes"
SPEED_RUN = "chosen by us: dev/speedrun.md"
TWO_HOURS = "chosen by us: dev/measurements.md, Public tests beside published numbers"

MUON = "chosen by us: dev/measurements.md, The recipes at equal compute"
MUONS_LEARNING_RATE = (
    "chosen by us: dev/measurements.md, Muon: its best learning rate is five times AdamW's, which "
    "here is MosaicBERT's 5e-4"
)

BERT = "Devlin et al. 2018"
GOOGLE_OPTIMIZER = "google-research/bert, optimization.py"
GOOGLE_DATA = "google-research/bert, create_pretraining_data.py"
GOOGLE_TIPS = "google-research/bert, README.md (Pre-training with BERT)"

CRAMMING = "JonasGeiping/cramming, cramming/config"
PILE = f"{CRAMMING}/data/the-pile.yaml"
TRAIN = f"{CRAMMING}/train/bert-o4.yaml"
EVALUATE = f"{CRAMMING}/eval/GLUE_sane.yaml"

ACADEMIC = "IntelLabs/academic-budget-bert, README.md"
ACADEMIC_DATA = "IntelLabs/academic-budget-bert, dataset/README.md"
TRAINER = "Hugging Face transformers, TrainingArguments (defaults)"

NOTEBOOK = "sradc/pretraining-BERT, pretraining_BERT.ipynb"
FINE_TUNING = "sradc/pretraining-BERT, run_finetuning.sh"

ROBERTA = "Liu et al. 2019 (RoBERTa)"
FAIRSEQ = "facebookresearch/fairseq, examples/roberta"
FAIRSEQ_GLUE = f"{FAIRSEQ}/README.glue.md"

MODERN = "Warner et al. 2024 (ModernBERT)"
MODERN_YAML = "AnswerDotAI/ModernBERT, yamls/modernbert/modernbert-base-pretrain.yaml"
MOSAIC_YAML = "mosaicml/examples, examples/benchmarks/bert/yamls/main/mosaic-bert-base-uncased.yaml"
MOSAIC_JOBS = "mosaicml/examples, examples/benchmarks/bert/src/finetuning_jobs.py (QQP)"

# groups of settings, with their source, that several recipes share
BATCH_32 = (OURS, dict(train_batch_size=32, lr_scaling="none"))
UNCASED_32K = (PILE, dict(tokenization="WordPiece", vocab_size=32768, do_lower_case=True))
BIAS_CORRECTION = ("PyTorch's AdamW", dict(adam_bias_correction=True))
UNSCALED_RATE = (OURS, dict(lr_scaling="none"))
TRAINER_ADAMW = (
    TRAINER,
    dict(
        optimizer="adamw",
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        adam_bias_correction=True,
    ),
)
MASKED_ANEW = (f"{ROBERTA}, section 4.1", dict(masking="dynamic", dupe_factor=1))
PREDICTIONS_39 = (f"{OURS}: max_seq_length x masked_lm_prob", dict(max_predictions_per_seq=39))
PREDICTIONS_77 = (
    f"{GOOGLE_TIPS}: max_seq_length x masked_lm_prob",
    dict(max_predictions_per_seq=77),
)
# of the recipes quick and cpu2h
MASKED_64 = (
    (SPEED_RUN, dict(masked_lm_prob=0.25, max_predictions_per_seq=16)),
    (
        QUICKLY,
        dict(
            max_seq_length=64,
            dupe_factor=4,
            tokenization="WordPiece",
            vocab_size=8192,
            do_lower_case=True,
        ),
    ),
)
SMALL_ROTARY = (
    (SPEED_RUN, dict(max_predictions_per_seq=16, clip_norm=0.0)),
    (
        QUICKLY,
        dict(
            model="tiny",
            norm_first=True,
            position_embedding_type="rotary",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
    ),
    (
        QUICKLY,
        dict(
            optimizer="muon",
            learning_rate=1e-2,
            lr_scaling="none",
            curve="linear",
            warmup_proportion=0.05,
        ),
    ),
    (QUICKLY, dict(global_batch_size=64, train_batch_size=64, max_seq_length=64)),
)
SMALL_BATCHES = (
    (
        QUICKLY,
        dict(
            global_batch_size=32,
            train_batch_size=32,
            warmup_proportion=0.1,
            max_seq_length=64,
            lr_scaling="none",
        ),
    ),
)
FLOAT16 = "its precision is float16; here it is that of --precision"
Groups = tuple[tuple[str, Mapping[str, object]], ...]  # (source, {flag: value})


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe: for each script, groups of settings that have the same source.

    Attributes:
      summary: one line for --help. differs: {script: phrases on what the source does differently}.
      phases: {number: {script: groups}} for a pretraining in parts, each with its own data; a
        phase's settings replace the recipe's values of the same flags.
    """

    summary: str
    data: Groups
    pretrain: Groups
    classify: Groups
    differs: dict[str, tuple[str, ...]]
    phases: dict[int, dict[str, Groups]] = dataclasses.field(default_factory=dict)

    def settings(self, script: str, phase: int | None = None) -> dict[str, tuple[object, str]]:
        """Return {flag: (value, source)} for a script: "data", "pretrain" or "classify". phase:
        number of the phase whose settings are added; None = no phase.
        """
        groups = getattr(self, script)
        if phase is not None:
            groups += self.phases[phase].get(script, ())
        return {name: (value, source) for source, group in groups for name, value in group.items()}


RECIPES = {
    "bert": Recipe(
        summary="BERT base as Google trained it: a million steps of 256 sequences",
        data=(
            (f"{BERT}, section 3.1", dict(objective="nsp")),
            (
                f"{GOOGLE_DATA} (defaults)",
                dict(
                    masking="static",
                    masked_lm_prob=0.15,
                    max_predictions_per_seq=20,
                    max_seq_length=128,
                    do_lower_case=True,
                ),
            ),
            (
                f"{GOOGLE_DATA} (defaults)",
                dict(dupe_factor=10, short_seq_prob=0.1, do_whole_word_mask=False),
            ),
            (
                "google-research/bert, vocab.txt of the uncased models",
                dict(tokenization="WordPiece", vocab_size=30522),
            ),
        ),
        pretrain=(
            (f"{BERT}, section 3", dict(model="base")),
            (
                f"{BERT}, appendix A.2",
                dict(global_batch_size=256, num_train_steps=1_000_000, max_seq_length=128),
            ),
            (
                f"{BERT}, appendix A.2",
                dict(learning_rate=1e-4, adam_beta1=0.9, adam_beta2=0.999, weight_decay_rate=0.01),
            ),
            (
                f"{BERT}, appendix A.2: 10,000 of 1,000,000 steps, as a share",
                dict(curve="linear", warmup_proportion=0.01),
            ),
            (
                GOOGLE_OPTIMIZER,
                dict(
                    optimizer="adamw", adam_epsilon=1e-6, adam_bias_correction=False, clip_norm=1.0
                ),
            ),
            (f"{GOOGLE_DATA} (defaults)", dict(max_predictions_per_seq=20)),
            BATCH_32,
        ),
        classify=(
            (
                "google-research/bert, run_classifier.py (defaults)",
                dict(
                    global_batch_size=32,
                    learning_rate=5e-5,
                    num_train_epochs=3.0,
                    warmup_proportion=0.1,
                    max_seq_length=128,
                ),
            ),
            (
                GOOGLE_OPTIMIZER,
                dict(optimizer="adamw", adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-6),
            ),
            (
                GOOGLE_OPTIMIZER,
                dict(
                    adam_bias_correction=False,
                    weight_decay_rate=0.01,
                    clip_norm=1.0,
                    curve="linear",
                ),
            ),
            BATCH_32,
        ),
        differs=dict(
            pretrain=(
                (
                    "the last tenth of its steps has rows of 512 tokens: --phase=1 and --phase=2 "
                    "are its two parts; without --phase all rows have 128"
                ),
                "it keeps the optimizer's moments in the second part; here --phase=2 resets them",
            ),
            classify=(
                (
                    "the paper picks the learning rate (5e-5, 3e-5, 2e-5) "
                    "and the epochs (2 to 4) by the dev accuracy"
                ),
            ),
        ),
        phases={
            1: dict(
                pretrain=(
                    (
                        f"{BERT}, appendix A.2: 90 % of 1,000,000 steps",
                        dict(num_train_steps=900_000),
                    ),
                    (
                        f"{BERT}, appendix A.2: 10,000 steps, as a share of 900,000",
                        dict(warmup_proportion=1 / 90),
                    ),
                    (
                        f"{BERT}, appendix A.2: where its one line over both parts is at 90 %",
                        dict(min_lr_ratio=0.1),
                    ),
                ),
            ),
            2: dict(
                data=(
                    (f"{BERT}, appendix A.2", dict(max_seq_length=512)),
                    PREDICTIONS_77,
                ),
                pretrain=(
                    (
                        f"{BERT}, appendix A.2: 10 % of 1,000,000 steps of the same batch",
                        dict(num_train_steps=100_000, max_seq_length=512),
                    ),
                    (
                        f"{BERT}, appendix A.2: where its one line over both parts is at 90 %",
                        dict(learning_rate=1e-5, warmup_proportion=0.0),
                    ),
                    PREDICTIONS_77,
                    (f"{OURS}: as many tokens at once as in phase 1", dict(train_batch_size=8)),
                ),
            ),
        },
    ),
    "crammed": Recipe(
        summary="Cramming (Geiping & Goldstein 2023, its final model): one GPU, one day",
        data=(
            (
                PILE,
                dict(
                    objective="packed",
                    pack_separator="sep",
                    max_seq_length=128,
                    max_tokens_per_character=0.25,
                ),
            ),
            UNCASED_32K,
            (
                f"{TRAIN}: a quarter of every row, exactly",
                dict(masked_lm_prob=0.25, max_predictions_per_seq=32),
            ),
            (
                "Geiping & Goldstein 2023: one epoch, masked when batches are made",
                dict(masking="dynamic", dupe_factor=1),
            ),
        ),
        pretrain=(
            (f"{CRAMMING}/arch/crammed-bert.yaml", dict(model="crammed")),
            (
                TRAIN,
                dict(
                    global_batch_size=8192,
                    batch_ramp_proportion=0.6,
                    learning_rate=1e-3,
                    weight_decay_rate=0.01,
                    clip_norm=0.5,
                ),
            ),
            (f"{TRAIN}: budget-triangle2", dict(curve="triangle", lr_schedule="time")),
            (f"{TRAIN}: of 4,096 masked words, for a GPU of 48 GB", dict(train_batch_size=128)),
            (f"{TRAIN}: a quarter of every row, exactly", dict(max_predictions_per_seq=32)),
            (
                f"{CRAMMING}/train/optim/adam.yaml",
                dict(optimizer="adamw", adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-12),
            ),
            (f"{CRAMMING}/cfg_pretrain.yaml", dict(total_training_time=24.0)),
            (PILE, dict(max_seq_length=128)),
            BIAS_CORRECTION,
            UNSCALED_RATE,
        ),
        classify=(
            (
                EVALUATE,
                dict(
                    learning_rate=4e-5,
                    global_batch_size=16,
                    num_train_epochs=5.0,
                    max_seq_length=128,
                ),
            ),
            (EVALUATE, dict(curve="cosine", warmup_proportion=0.1, clip_norm=0.0)),
            (
                f"{CRAMMING}/eval/optim/adam.yaml",
                dict(optimizer="adamw", adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-6),
            ),
            (f"{CRAMMING}/eval/optim/adam.yaml", dict(weight_decay_rate=0.0)),
            (
                f"{CRAMMING}/arch/crammed-bert.yaml",
                dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, pooler_size=1024),
            ),
            (f"{EVALUATE}: zero_index", dict(pooling="first")),
            BIAS_CORRECTION,
            (OURS, dict(train_batch_size=16, lr_scaling="none")),
        ),
        differs=dict(
            data=(
                (
                    "its rows are ordered by their number of full stops, "
                    "most first; here they are in random order"
                ),
                "its text is reduced to the characters of an English keyboard",
            ),
            pretrain=(FLOAT16,),
            classify=(
                (
                    "its cosine begins after the warm-up; ours runs over "
                    "the whole fine-tuning, with warm-up in place of its start"
                ),
                "it reports the median of 5 seeds: run_classifier.py five times, with --seed",
                "a task of single texts has a second, empty text there, and so one more [SEP]",
            ),
        ),
    ),
    "budget24h": Recipe(
        summary=(
            "24-hour BERT (Izsak et al. 2021): "
            "BERT large with pre-LN, on 8 GPUs of 12 GB in one day"
        ),
        data=(
            (
                "Izsak et al. 2021: single-sequence training, without next sentences",
                dict(objective="full_sentences"),
            ),
            (
                ACADEMIC_DATA,
                dict(
                    masking="static",
                    masked_lm_prob=0.15,
                    max_predictions_per_seq=20,
                    max_seq_length=128,
                    dupe_factor=10,
                ),
            ),
            (
                f"{ACADEMIC_DATA}: bert-large-uncased",
                dict(tokenization="WordPiece", vocab_size=30522, do_lower_case=True),
            ),
        ),
        pretrain=(
            (
                ACADEMIC,
                dict(
                    model="budget24h",
                    global_batch_size=4096,
                    train_batch_size=32,
                    eval_batch_size=16,
                ),
            ),
            (ACADEMIC, dict(learning_rate=1e-3, lr_schedule="time", total_training_time=24.0)),
            (f"{ACADEMIC}: what it calls linear", dict(curve="one_cycle", warmup_proportion=0.06)),
            (
                ACADEMIC,
                dict(
                    optimizer="adamw",
                    adam_beta1=0.9,
                    adam_beta2=0.98,
                    adam_epsilon=1e-6,
                    weight_decay_rate=0.01,
                    clip_norm=0.0,
                ),
            ),
            (ACADEMIC, dict(early_stop_time=180.0, early_stop_eval_loss=6.0)),
            (ACADEMIC_DATA, dict(max_seq_length=128, max_predictions_per_seq=20)),
            (
                (
                    f"{OURS}: closer in the first 5 % and the last 1 %, "
                    f"as in {ACADEMIC}, whose epochs are shards"
                ),
                dict(
                    validation_marks=tuple(
                        (
                            "0.01 0.02 0.03 0.04 0.05 0.1 0.15 0.2 0.25 0.3 0.35 0.4 "
                            "0.45 0.5 0.55 0.6 0.65 0.7 0.75 0.8 0.85 0.9 0.95 0.99 0.995"
                        ).split()
                    )
                ),
            ),
            BIAS_CORRECTION,
            UNSCALED_RATE,
        ),
        classify=(
            (
                ACADEMIC,
                dict(
                    learning_rate=5e-5,
                    global_batch_size=32,
                    num_train_epochs=5.0,
                    max_seq_length=128,
                ),
            ),
            (ACADEMIC, dict(weight_decay_rate=0.01, clip_norm=1.0)),
            (f"{ACADEMIC}: polynomial of power 1", dict(curve="one_cycle", num_warmup_steps=50)),
            (
                (
                    "Hugging Face transformers, "
                    "get_polynomial_decay_schedule_with_warmup: ends at 1e-7"
                ),
                dict(min_lr_ratio=0.002),
            ),
            TRAINER_ADAMW,
            BATCH_32,
        ),
        differs=dict(pretrain=(FLOAT16,)),
    ),
    "gpu8gb": Recipe(
        summary=(
            "a BERT base on one GPU of 8 GB, one epoch of 20 GB of text "
            "in about 100 hours (sidsite.com/posts/bert-from-scratch)"
        ),
        data=(
            (
                NOTEBOOK,
                dict(
                    max_seq_length=128,
                    tokenization="WordPiece",
                    vocab_size=32768,
                    do_lower_case=True,
                ),
            ),
            (
                f"{NOTEBOOK}: one epoch, masked when batches are made",
                dict(masking="dynamic", masked_lm_prob=0.15, dupe_factor=1),
            ),
            (
                f"{OURS}: nearest to its shuffled pieces of text, and none cut off",
                dict(objective="full_sentences"),
            ),
            (OURS, dict(max_predictions_per_seq=20)),
        ),
        pretrain=(
            (
                NOTEBOOK,
                dict(
                    model="base",
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                    max_seq_length=128,
                ),
            ),
            (
                f"{NOTEBOOK}: 56 x 36, the latter chosen to fill 8 GB",
                dict(global_batch_size=2016, train_batch_size="auto"),
            ),
            (
                NOTEBOOK,
                dict(
                    num_train_epochs=1.0, learning_rate=1e-3, weight_decay_rate=0.01, clip_norm=0.5
                ),
            ),
            (NOTEBOOK, dict(optimizer="adamw", adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-9)),
            (f"{NOTEBOOK}: what it calls linear", dict(curve="one_cycle", warmup_proportion=0.5)),
            BIAS_CORRECTION,
            (OURS, dict(max_predictions_per_seq=20, lr_scaling="none")),
        ),
        classify=(
            (
                FINE_TUNING,
                dict(
                    learning_rate=2e-5,
                    global_batch_size=32,
                    num_train_epochs=5.0,
                    max_seq_length=124,
                ),
            ),
            (
                f"{FINE_TUNING}: what it calls linear",
                dict(curve="one_cycle", warmup_proportion=0.0),
            ),
            TRAINER_ADAMW,
            (TRAINER, dict(weight_decay_rate=0.0, clip_norm=1.0)),
            BATCH_32,
        ),
        differs=dict(
            data=(
                (
                    "its rows are pieces of text cut off at 126 tokens, with 15 % "
                    "masked on average; here rows are full and the share is exact"
                ),
                "its text loses what is not ASCII",
            ),
            pretrain=(
                "its model has 128 positions; here 512, as BERT base",
                "its precision is float32; here it is that of --precision",
            ),
        ),
    ),
    "roberta": Recipe(
        summary=(
            "RoBERTa base (Liu et al. 2019): full rows of 512 tokens without next sentences, "
            "masked anew in every epoch, 500,000 steps of 8,192"
        ),
        data=(
            (
                f"{ROBERTA}, section 4.2: FULL-SENTENCES without NSP",
                dict(objective="full_sentences"),
            ),
            MASKED_ANEW,
            (f"{ROBERTA}, section 2.3", dict(masked_lm_prob=0.15)),
            (f"{ROBERTA}, section 3.1: full length in every step", dict(max_seq_length=512)),
            (f"{OURS}: max_seq_length x masked_lm_prob", dict(max_predictions_per_seq=77)),
            (
                f"{ROBERTA}, section 4.4: 50K pieces of text as it is",
                dict(vocab_size=50_000, do_lower_case=False),
            ),
            (f"{OURS}: nearest to its BPE of bytes", dict(tokenization="WordPiece")),
        ),
        pretrain=(
            (f"{ROBERTA}, table 9", dict(model="base")),
            ("Hugging Face transformers, config.json of roberta-base", dict(layer_norm_eps=1e-5)),
            (
                f"{ROBERTA}, table 9",
                dict(global_batch_size=8192, num_train_steps=500_000, max_seq_length=512),
            ),
            (
                f"{ROBERTA}, table 9",
                dict(
                    learning_rate=6e-4,
                    adam_beta1=0.9,
                    adam_beta2=0.98,
                    adam_epsilon=1e-6,
                    weight_decay_rate=0.01,
                    clip_norm=0.0,
                ),
            ),
            (
                f"{ROBERTA}, table 9: 24,000 of 500,000 steps, as a share; what it calls linear",
                dict(curve="one_cycle", warmup_proportion=0.048),
            ),
            (f"{FAIRSEQ}/config/pretraining/base.yaml", dict(train_batch_size=16)),
            (
                f"{FAIRSEQ}/config/pretraining/base.yaml: its adam corrects the bias",
                dict(optimizer="adamw", adam_bias_correction=True),
            ),
            (OURS, dict(max_predictions_per_seq=77, lr_scaling="none")),
        ),
        classify=(
            (
                f"{FAIRSEQ_GLUE}: for MNLI, QNLI, QQP and SST-2",
                dict(learning_rate=1e-5, global_batch_size=32),
            ),
            (FAIRSEQ_GLUE, dict(num_train_epochs=10.0, max_seq_length=512)),
            (
                f"{FAIRSEQ_GLUE}: polynomial of power 1",
                dict(curve="one_cycle", warmup_proportion=0.06),
            ),
            (
                FAIRSEQ_GLUE,
                dict(
                    optimizer="adamw",
                    adam_beta1=0.9,
                    adam_beta2=0.98,
                    adam_epsilon=1e-6,
                    weight_decay_rate=0.1,
                    clip_norm=0.0,
                ),
            ),
            (f"{FAIRSEQ_GLUE}: its adam corrects the bias", dict(adam_bias_correction=True)),
            BATCH_32,
        ),
        differs=dict(
            data=("its vocabulary is a BPE of bytes, which covers every text; here WordPiece",),
            pretrain=(
                (
                    "it has no segment embeddings; here BERT base's, so that transformers opens "
                    "the model"
                ),
                FLOAT16,
            ),
            classify=("it picks the learning rate and the batch of each task by the dev set",),
        ),
    ),
    "modern": Recipe(
        summary=(
            "our choice of what has since been shown to help (MosaicBERT, ModernBERT, NeoBERT, "
            "Cramming) and of what we measured (Muon), 70,000 steps of 4,096 rows of 128 tokens; "
            "not yet measured as a whole"
        ),
        data=(
            (
                f"{MODERN}, section 2.2.1: rows filled with several texts",
                dict(objective="packed", pack_separator="cls_sep"),
            ),
            (f"{MOSAIC_YAML}, as {MODERN}, section 2.2.2", dict(masked_lm_prob=0.3)),
            MASKED_ANEW,
            (MOSAIC_YAML, dict(max_seq_length=128)),
            PREDICTIONS_39,
            UNCASED_32K,
        ),
        pretrain=(
            (f"{MODERN}, section 2.1.3: base's width, more layers", dict(model="base")),
            (
                f"{MODERN}, section 2.1.3",
                dict(num_hidden_layers=22, intermediate_size=2304),
            ),
            (
                f"{MODERN}, section 2.1.1",
                dict(
                    hidden_act="geglu",
                    position_embedding_type="rotary",
                    norm_first=True,
                    use_bias=False,
                ),
            ),
            (
                "Le Breton et al. 2025 (NeoBERT): as stable as LayerNorm, and less work",
                dict(norm_type="rms_norm"),
            ),
            (MODERN_YAML, dict(layer_norm_eps=1e-5)),
            (
                f"{CRAMMING}/arch/crammed-bert.yaml",
                dict(
                    type_vocab_size=0,
                    mlm_transform=False,
                    decoder_bias=False,
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                ),
            ),
            (
                MOSAIC_YAML,
                dict(global_batch_size=4096, train_batch_size=128, max_seq_length=128),
            ),
            (f"{MOSAIC_YAML}: 286,720,000 rows", dict(num_train_steps=70_000)),
            (MUON, dict(optimizer="muon")),
            (MUONS_LEARNING_RATE, dict(learning_rate=2.5e-3)),
            (
                f"{MOSAIC_YAML}, for what Muon leaves to AdamW",
                dict(adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-6),
            ),
            (
                f"{MOSAIC_YAML}: 1e-5 a step, which is this times its learning rate of 5e-4",
                dict(weight_decay_rate=0.02),
            ),
            (TRAIN, dict(clip_norm=0.5)),
            (
                f"{MODERN}, section 2.2.2: warm-up, stable, 1 - sqrt",
                dict(curve="wsd"),
            ),
            (MOSAIC_YAML, dict(warmup_proportion=0.06)),
            (
                "Hu et al. 2024 (MiniCPM): a tenth of the run is enough",
                dict(decay_proportion=0.1),
            ),
            (
                f"{MODERN}, section 2.2.2: over 50 of 1,719 billion tokens, rounded",
                dict(batch_ramp_proportion=0.03),
            ),
            BIAS_CORRECTION,
            PREDICTIONS_39,
            UNSCALED_RATE,
        ),
        classify=(
            (
                MOSAIC_JOBS,
                dict(
                    learning_rate=3e-5,
                    global_batch_size=16,
                    num_train_epochs=5.0,
                    max_seq_length=256,
                ),
            ),
            (MOSAIC_JOBS, dict(curve="one_cycle", warmup_proportion=0.06)),
            (
                MOSAIC_JOBS,
                dict(optimizer="adamw", adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-6),
            ),
            (
                f"{MOSAIC_JOBS}: 3e-6 a step at the peak, which is this times the learning rate",
                dict(weight_decay_rate=0.1),
            ),
            (
                f"{MOSAIC_YAML}: of hidden values as in BERT, of probabilities none",
                dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0),
            ),
            BIAS_CORRECTION,
            (OURS, dict(clip_norm=1.0, train_batch_size=16, lr_scaling="none")),
        ),
        differs=dict(
            pretrain=(
                (
                    "ModernBERT and NeoBERT train on rows of 1,024 tokens first, then longer ones, "
                    "and on about 50 times as many tokens"
                ),
                "ModernBERT has LayerNorm without bias, and two of three layers see 128 neighbours",
            ),
        ),
    ),
    "quick": Recipe(
        summary=(
            "minutes on a CPU: a tiny pre-LN BERT with rotary positions on rows of 64 tokens, with "
            "Muon; what a call without settings does where there is no GPU. On the bundled text "
            "its loss of masked words, 25 %, is 4.56 after about 4 minutes of two cores"
        ),
        data=((BERT, dict(objective="nsp", masking="static")), *MASKED_64),
        pretrain=(*SMALL_ROTARY, (QUICKLY, dict(num_train_steps=1000, eval_steps=200))),
        classify=SMALL_BATCHES,
        differs={},
    ),
    "cpu2h": Recipe(
        summary=(
            "two hours on two CPU cores: four layers of quick's, without next sentence. On 71 MB "
            "of English its loss of masked words, 25 %, is 3.37, and 59 % of BLiMP's pairs are "
            "right"
        ),
        data=((TWO_HOURS, dict(objective="full_sentences", masking="static")), *MASKED_64),
        pretrain=(
            *SMALL_ROTARY,
            (TWO_HOURS, dict(num_hidden_layers=4, num_train_steps=15_600, eval_steps=1000)),
        ),
        classify=SMALL_BATCHES,
        differs={},
    ),
}
