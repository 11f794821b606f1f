"""Writes a bert-gpu tokenizer as a tokenizer.json, with which Hugging Face's `tokenizers` gives the
same ids.

One difference is on purpose: `tokenizers` reads a special piece written out in a text, such as
[MASK], as that piece, bert-gpu as three words. Another difference cannot be avoided: where two ways
to cut a word (a run of dots) are equally probable, the two programs may choose differently, because
SentencePiece rounds in float32 and `tokenizers` does not.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer
from bert_gpu.text.tokenizers.rules import FINAL_SIGMA, NFKC, ONE_SPACE, STRIP, as_text
from bert_gpu.text.tokenizers.sentence_piece import SPACE, SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import MAX_WORD_CHARACTERS, Tokenizer
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES

# numbers that sentencepiece_model.proto gives to kinds of models and of pieces
UNIGRAM = 1
PLAIN_KINDS = {1, 2, 3, 6}  # kinds of pieces: normal, unknown, control, byte
NORMAL_FORMS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")


def special_tokens(tokenizer: Tokenizer) -> dict[str, tuple[str, int]]:
    """Return {BERT's name of a special piece, such as "[PAD]": (its name in the tokenizer's
    vocabulary, its id)}.
    """
    ids = (getattr(tokenizer, f"{name}_id") for name in ("pad", "unk", "cls", "sep", "mask"))
    return {
        piece: (tokenizer.vocab[index], index)
        for piece, index in zip(SPECIAL_PIECES, ids, strict=True)
    }


def tokenizer_json(tokenizer: Tokenizer, num_segments: int) -> bytes:
    """Return the bytes of a tokenizer.json for a tokenizer: of Hugging Face's `tokenizers`, the
    file that it was read from, with another rule for pairs if that has another segment for the
    second text. Raise UserError when `tokenizers` cannot give the same ids.

    num_segments: number of segments of the model; with fewer than 2, both texts of a pair are in
    segment 0.
    """
    second = min(1, max(0, num_segments - 1))
    if isinstance(tokenizer, HuggingFaceTokenizer):
        (stored,) = tokenizer.files().values()
        if tokenizer.second_segment == second:
            return stored
        rule = template(special_tokens(tokenizer), second, tokenizer.separators)
        return as_text(json.loads(stored) | dict(post_processor=rule)).encode()
    parts = (
        sentence_piece_parts(tokenizer)
        if isinstance(tokenizer, SentencePieceTokenizer)
        else word_piece_parts(tokenizer)
    )
    specials = special_tokens(tokenizer)
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    content = dict(
        version="1.0",
        truncation=None,
        padding=None,
        added_tokens=[
            dict(id=index, content=name) | flags
            for name, index in sorted(specials.values(), key=lambda token: token[1])
        ],
        post_processor=template(specials, second),
        **parts,
    )
    return (json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def template(
    specials: Mapping[str, tuple[str, int]], second: int, separators: int = 1
) -> dict[str, object]:
    """Return the post_processor of a tokenizer.json, which makes rows [CLS] A [SEP] and [CLS] A
    [SEP] B [SEP]. second: segment of B. separators: number of [SEP] before B.
    """
    first, first_id = specials["[CLS]"]
    last, last_id = specials["[SEP]"]

    def piece(name: str, segment: int) -> dict[str, object]:
        return dict(SpecialToken=dict(id=name, type_id=segment))

    def text(name: str, segment: int) -> dict[str, object]:
        return dict(Sequence=dict(id=name, type_id=segment))

    single = [piece(first, 0), text("A", 0), piece(last, 0)]
    return dict(
        type="TemplateProcessing",
        single=single,
        pair=[
            *(*single, *[piece(last, 0)] * (separators - 1)),
            *(text("B", second), piece(last, second)),
        ],
        special_tokens={
            name: dict(id=name, ids=[index], tokens=[name])
            for name, index in ((first, first_id), (last, last_id))
        },
    )


def word_piece_parts(tokenizer: Tokenizer) -> dict[str, object]:
    """Return the normalizer, pre_tokenizer, decoder and model of a tokenizer.json for WordPiece
    with BERT's own rules.
    """
    rules = dict(
        type="BertNormalizer",
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=None if tokenizer.strip_accents else False,
        lowercase=tokenizer.do_lower_case,
    )
    lowered = dict(type="Sequence", normalizers=[FINAL_SIGMA, rules])
    return dict(
        normalizer=lowered if tokenizer.do_lower_case else rules,
        pre_tokenizer=dict(type="BertPreTokenizer"),
        decoder=dict(type="WordPiece", prefix="##", cleanup=True),
        model=dict(
            type="WordPiece",
            unk_token="[UNK]",
            continuing_subword_prefix="##",
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
            vocab={piece: index for index, piece in enumerate(tokenizer.vocab) if piece},
        ),
    )


def sentence_piece_parts(tokenizer: SentencePieceTokenizer) -> dict[str, object]:
    """Return the normalizer, pre_tokenizer, decoder and model of a tokenizer.json for a
    SentencePiece unigram model. They apply the model's own table of characters, merge repeated
    spaces, remove spaces at both ends and put one before the text.
    """
    from sentencepiece import sentencepiece_model_pb2

    (content,) = tokenizer.files().values()
    model = sentencepiece_model_pb2.ModelProto.FromString(content)  # type: ignore[attr-defined]
    if problem := obstacle(tokenizer, model):
        raise UserError(f"the SentencePiece model {problem}, which tokenizer.json cannot express")
    spec = model.normalizer_spec
    steps = [FINAL_SIGMA, dict(type="Lowercase")] if tokenizer.lowers_first else []
    if spec.precompiled_charsmap:
        table = base64.b64encode(spec.precompiled_charsmap).decode()
        steps += [*NFKC, dict(type="Precompiled", precompiled_charsmap=table)]
    steps += [ONE_SPACE, STRIP]
    spaces = dict(type="Metaspace", replacement=SPACE, prepend_scheme="always", split=False)
    decoder: dict[str, object] = spaces
    if tokenizer.has_bytes:
        decoder = dict(type="Sequence", decoders=[dict(type="ByteFallback"), spaces])
    return dict(
        normalizer=dict(type="Sequence", normalizers=steps),
        pre_tokenizer=spaces,
        decoder=decoder,
        model=dict(
            type="Unigram",
            unk_id=tokenizer.unk_id,
            vocab=[[piece.piece, piece.score] for piece in model.pieces],
            byte_fallback=tokenizer.has_bytes,
        ),
    )


def obstacle(tokenizer: Tokenizer, model: Any) -> str | None:
    """Return the reason why `tokenizers` cannot give the ids of a SentencePiece model, as the end
    of a sentence; None if it can. model: a ModelProto.
    """
    specials = {name for name, _ in special_tokens(tokenizer).values()}
    kinds = {piece.type for piece in model.pieces if piece.piece not in specials}
    if model.trainer_spec.model_type != UNIGRAM:
        return "is not a unigram model"
    if kinds - PLAIN_KINDS:
        return "has user-defined or unused pieces"
    spec = model.normalizer_spec
    if spec.precompiled_charsmap and spec.name not in NORMAL_FORMS:
        return "has rules of its own for characters"
    usual = (spec.add_dummy_prefix, spec.remove_extra_whitespaces, spec.escape_whitespaces)
    if not all(usual) or model.trainer_spec.treat_whitespace_as_suffix:
        return "treats spaces in a way of its own"
    return None
