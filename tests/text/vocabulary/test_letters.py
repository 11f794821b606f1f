"""A vocabulary in lower case is warned of exactly where an independent implementation, ICU's and
RE2's in TensorFlow, counts that many letters that lower-casing changes beyond their case.
"""

import subprocess
import sys
import types
import unicodedata

import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.text.config import LINES, VocabConfig
from bert_gpu.text.tokenizers import sentence_piece
from bert_gpu.text.vocabulary import learning

PLAIN = "The river turns the old mill and nobody counts how many sacks of flour leave it".split()
WORDS = {
    "Hindi": "नदी पुरानी चक्की को घुमाती है और कोई नहीं गिनता",
    "Bengali": "নদী পুরোনো কল ঘোরায় কেউ গোনে না",
    "Tamil": "ஆறு பழைய ஆலையைச் சுற்றுகிறது",
    "Burmese": "မြစ်သည် ဆုံကို လှည့်သည်",
    "Khmer": "ទន្លេ បង្វិល ម៉ាស៊ីន ចាស់",
    "Thai": "แม่น้ำ หมุน โรงสี เก่า ไม่มี ใคร นับ",
    "Arabic": "النهر يدير الطاحونة ولا أحد إلى آخر السؤال",
    "Hebrew": "הַנָּהָר מְסוֹבֵב אֶת הַטַּחֲנָה הישנה",
    "Japanese": "かわが ふるい すいしゃを まわす バケツ ポンプ",
    "Korean": "강물이 낡은 물레방아를 돌린다 아무도 세지 않는다",
    "Russian": "Река крутит старый жёрнов но чей он и который",
    "Ukrainian": "Річка крутить її млин край поїзд",
    "Chinese": "河水 转动 旧 磨坊",
    "Greek": "Το ποτάμι γυρίζει τον παλιό μύλο κανείς",
    "Vietnamese": "Dòng sông quay cối xay cũ và không ai đếm bột",
    "French": "La rivière fait tourner le vieux moulin où l’été règne",
    "Czech": "Řeka otáčí starým mlýnem a nikdo nepočítá pytle",
    "Yoruba": "Odò ń yí ọlọ àtijọ́ ká",
}
ACCENTS, SCRIPTS = "strips the accents of", "deletes or cuts up"


class Console:
    def __init__(self):
        self.warnings = []

    def say(self, text):
        pass

    def warn(self, text):
        self.warnings.append(text)


def changed_shares(text):
    """{part of the warning: share of the letters}, counted by ICU and RE2."""
    text = tf_text.normalize_utf8(tf.strings.lower(text, encoding="utf-8"), "NFC")
    characters = tf.strings.unicode_split(text, "UTF-8")
    characters = characters[tf.strings.regex_full_match(characters, r"[\p{L}\p{M}]")]
    decomposed = tf_text.normalize_utf8(characters, "NFD")
    is_changed = tf.strings.regex_replace(decomposed, r"\p{Mn}", "") != characters
    is_accent = tf.strings.regex_full_match(
        decomposed, r"[\p{Latin}\p{Greek}\x{300}-\x{36f}]\p{M}*"
    )
    return {
        ACCENTS: float(tf.reduce_mean(tf.cast(is_changed & is_accent, tf.float64))),
        SCRIPTS: float(tf.reduce_mean(tf.cast(is_changed & ~is_accent, tf.float64))),
    }


def warnings_of_vocab(folder, text, **changes):
    """The warnings of `bert-gpu vocab` about letters."""
    (folder / "text.txt").write_text(text, encoding="utf-8")
    files = dict(input_file=f"{folder}/text.txt", vocab_file=f"{folder}/vocab", overwrite=True)
    if changes.get("tokenization") == "SentencePiece":
        files["sp_model_file"] = f"{folder}/model"
    console = Console()
    learning.learn_files(VocabConfig(**files, **changes), LINES, console)
    return [text for text in console.warnings if "lower-casing" in text]


def learn_nothing(monkeypatch):
    """What is learnt does not matter here, and takes time."""
    monkeypatch.setattr(learning, "learn", lambda *_: (b"", 0))
    empty = types.SimpleNamespace(vocab=[])
    kinds = dict.fromkeys(learning.TOKENIZERS, lambda *_: empty)
    monkeypatch.setattr(learning, "TOKENIZERS", kinds)


@st.composite
def texts(draw):
    """Lines of words: one or two languages among some plain English."""
    words = list(PLAIN) * draw(st.sampled_from([0, 1, 3, 40]))
    for language in draw(st.lists(st.sampled_from(sorted(WORDS)), min_size=1, max_size=2)):
        own = st.sampled_from(WORDS[language].split())
        words += draw(st.lists(own, min_size=1, max_size=8)) * draw(st.sampled_from([1, 5]))
    case = draw(st.sampled_from([str, str.upper]))
    form = draw(st.sampled_from(["NFC", "NFD"]))
    lines = (" ".join(words[i : i + 8]) for i in range(0, len(words), 8))
    return unicodedata.normalize(form, case("\n".join(lines)))


def test_vocab_warns_exactly_where_many_letters_change(tmp_path, monkeypatch):
    learn_nothing(monkeypatch)

    @settings(max_examples=100)
    @given(
        texts(),
        st.sampled_from(["WordPiece"] * 5 + ["SentencePiece"]),
        st.sampled_from([True] * 5 + [False]),
    )
    def check(text, tokenization, do_lower_case):
        warnings = warnings_of_vocab(
            tmp_path,
            text,
            tokenization=tokenization,
            do_lower_case=do_lower_case,
        )
        shares = changed_shares(text)
        is_lossy = do_lower_case and tokenization == "WordPiece"
        wanted = [
            f"{part} {shares[part]:.1%} of the letters"
            for part, most in ((SCRIPTS, 0.003), (ACCENTS, 0.15))
            if is_lossy and shares[part] > most
        ]
        assert len(warnings) == len(wanted), (warnings, shares)
        for warning, part in zip(warnings, wanted, strict=True):
            assert part in warning and "give --nostrip_accents" in warning
            assert len(f"--strict: {warning}") <= 300

    check()


@pytest.mark.parametrize(
    "text, change",
    [
        (WORDS["Hindi"] + " है", "'है' -> 'ह'"),
        ("강물 강물 Fluss", "'강물' -> 'ᄀ ᅡ ᆼ ᄆ ᅮ ᆯ'"),
        ("ЁЖ и ёж", "'ёж' -> 'еж'"),
        ("が か", "'が' -> 'か'"),
        ("e\u0301te\u0301 ÉTÉ", "'été' -> 'ete'"),
    ],
    ids=["Hindi", "Korean", "Russian", "Japanese", "decomposed"],
)
def test_the_example_is_the_commonest_word_that_changes(tmp_path, monkeypatch, text, change):
    learn_nothing(monkeypatch)
    (warning,) = warnings_of_vocab(tmp_path, text)
    assert f"such as {change};" in warning


LANGUAGES = {
    "French": "Hier soir, j’ai traversé le marché pour acheter des pêches et du fromage de chèvre. "
    "La vendeuse m’a demandé si l’été avait été bon chez nous, près de la rivière. "
    "J’ai répondu que la pluie n’avait pas cessé, mais que les pommes étaient déjà mûres.",
    "German": "Gestern Abend ging ich über den Markt, um Äpfel und ein Stück Käse zu kaufen. "
    "Die Verkäuferin fragte, ob der Sommer bei uns am Fluss schön gewesen sei. "
    "Ich erzählte ihr, dass es zwar häufig geregnet habe, die Früchte aber früh reif würden.",
    "Spanish": "Ayer por la tarde crucé el mercado para comprar melocotones y un poco de queso. "
    "La señora me preguntó si el verano había sido bueno allí, cerca del río. "
    "Le respondí que llovió sin parar, pero que las manzanas ya están maduras este año.",
    "Czech": "Včera večer jsem šel přes tržiště, abych koupil broskve a kousek kozího sýra. "
    "Prodavačka se mě zeptala, jestli u nás blízko řeky bylo hezké léto. "
    "Odpověděl jsem, že pršelo skoro pořád, ale že jablka už dozrála a budou letos velmi dobrá.",
    "Vietnamese": "Tối hôm qua tôi đi qua chợ để mua mấy quả đào và một miếng pho mát. "
    "Người bán hàng hỏi mùa hè ở chỗ chúng tôi gần con sông có đẹp không. "
    "Tôi trả lời rằng trời mưa suốt, nhưng những quả táo đã chín và năm nay rất ngon.",
    "Greek": "Χθες το βράδυ πέρασα από την αγορά για να πάρω ροδάκινα και λίγο τυρί. "
    "Η κυρία με ρώτησε αν το καλοκαίρι ήταν όμορφο κοντά στο ποτάμι.",
}


@pytest.mark.parametrize("text", ["We met ❤️ here. ", "Step 1️⃣ is done. ", "no ☀︎ today "])
def test_variation_selectors_of_symbols_are_no_letters(tmp_path, monkeypatch, text):
    learn_nothing(monkeypatch)
    assert warnings_of_vocab(tmp_path, text * 9) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_of_languages_with_accents_only_vietnamese_loses_too_many(tmp_path, monkeypatch, language):
    """Spanish has 5 % of such letters, German 6, French 9, Czech and Greek 14, Vietnamese 27."""
    learn_nothing(monkeypatch)
    share = changed_shares(LANGUAGES[language])[ACCENTS]
    warnings = warnings_of_vocab(tmp_path, LANGUAGES[language])
    assert len(warnings) == (share > 0.15) == (language == "Vietnamese")


def test_a_sentencepiece_model_in_lower_case_keeps_marks_and_syllables():
    text = " ".join(" ".join(WORDS.values()).split() * 3)
    counts = sentence_piece.count_words([[text]])
    content = sentence_piece.learn_sentencepiece(counts, 500, do_lower_case=True)
    normal = sentence_piece.sentencepiece.SentencePieceProcessor(model_proto=content).normalize(
        text
    )
    assert unicodedata.normalize("NFC", normal.replace(sentence_piece.SPACE, " ").strip()) == (
        unicodedata.normalize("NFKC", text.casefold())
    )


@pytest.mark.long
def test_the_quick_recipe_stops_before_it_writes(tmp_path):
    (tmp_path / "text.txt").write_text(f"{WORDS['Thai']}\n{WORDS['Thai']}\n\n" * 9)
    command = [
        sys.executable,
        "-m",
        "bert_gpu",
        "data",
        "--input_file=text.txt",
        "--output_dir=out",
    ]
    result = subprocess.run([*command, "--strict"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2 and "--recipe=quick" in result.stdout
    assert (
        result.stderr.startswith("--strict: lower-casing ") and "'แม่น้ำ' -> 'แมนำ'" in result.stderr
    )
    assert not (tmp_path / "out").exists()
