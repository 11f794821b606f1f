"""Laws of mixtures: shares after any number of records, epochs of each set, and an order that
depends on the seed and the record number alone.
"""

import itertools
import shutil

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.data import examples, pipeline, records
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.data.mixture import MixedSet, Mixture
from bert_gpu.train.step import divide_batch

SIZES = dict(web=37, books=11, code=150)  # records
LENGTHS = dict(web=(16, 16), books=(4, 4), code=(2, 14))  # fewest and most tokens of a record


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each set; input_ids[0] is the number of the set, input_ids[1] of the record."""
    root = tmp_path_factory.mktemp("sets")
    rng = np.random.default_rng(1)
    for number, (name, size) in enumerate(SIZES.items()):
        (root / name).mkdir()
        ids = np.zeros((size, 16), np.int64)
        ids[:, 0] = number
        ids[:, 1] = np.arange(size)
        low, high = LENGTHS[name]
        is_token = np.arange(16) < rng.integers(low, high + 1, size)[:, None]
        # long pieces, so that records with more tokens have more bytes
        ids[:, 2:] = 300 * is_token[:, 2:]
        values = dict(input_ids=ids, input_mask=is_token.astype(np.int64), segment_ids=ids * 0)
        values |= dict(masked_lm_positions=ids[:, :2] * 0, masked_lm_ids=ids[:, :2] * 0)
        values |= dict(masked_lm_weights=np.ones((size, 2), np.float32))
        for part, rows in enumerate(np.array_split(np.arange(size), 2)):
            with records.ShardWriter(str(root / name / f"x{part}.tfrecord")) as writer:
                own = {key: value[rows] for key, value in values.items()}
                writer.write(*examples.encode_examples(own))
    return root


def open_data(folders, weights=".5,.2,.3", names=SIZES, **settings):
    parts = ",".join(f"{folders}/{name}/*.tfrecord" for name in names)
    return Dataset(InputConfig(input_file=parts, input_weights=weights, **settings))


def stream(data, batch_size, position=0, num_records=600, changed=None, shuffle=True, seed=1):
    """(R, 3): the set, the record and the number of tokens of each record read."""
    if changed is not None:
        data.mixture.changed = changed
    reader = data.reader("train", None, seed)
    batches = pipeline.training_batches(
        reader, batch_size=batch_size, position=position, shuffle=shuffle
    )
    batches = list(itertools.islice(batches, num_records // batch_size))
    columns = [[batch["input_ids"][:, i] for batch in batches] for i in (0, 1)]
    columns.append([batch["input_mask"].sum(1) for batch in batches])
    return np.stack([np.concatenate(column) for column in columns], 1)


def random_mixture(rng, num_sets):
    weights = [rng.dirichlet(np.full(num_sets, rng.choice([0.1, 0.5, 2.0]))) for _ in range(2)]
    weights = np.maximum(weights, 1e-7)
    tokens = rng.uniform(5, 128, num_sets)
    return Mixture(
        [
            MixedSet(str(n), int(rng.integers(1000, 9000)), 1, tokens[n], weights[:, n].tolist())
            for n in range(num_sets)
        ]
    )


@pytest.mark.parametrize("num_sets", [1, 2, 3, 7, 30])
def test_after_any_number_of_records_each_set_has_its_share_within_one(num_sets):
    rng = np.random.default_rng(num_sets)
    for _ in range(10):
        mixture = random_mixture(rng, num_sets)
        mixture.changed = 2222
        sizes = np.array([one.num_records for one in mixture.sets])
        order = next(mixture.orders(0, 5000, 1, 1)) % sizes.sum()
        sets = np.searchsorted(np.cumsum(sizes), order, side="right")
        for part, phase in ((sets[:2222], 0), (sets[2222:], 1)):
            counts = np.cumsum(part[:, None] == np.arange(num_sets), 0)
            rates = [one.weights[phase] / one.tokens_per_record for one in mixture.sets]
            shares = np.array(rates) / sum(rates)
            due = np.arange(1, len(part) + 1)[:, None] * shares
            assert np.abs(counts - due).max() < 1 + 1e-9


@pytest.mark.parametrize("padding", ["fixed", "uniform"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_position_is_a_number(folders, padding, shuffle):
    """A run that resumes reads the same records, before and after the weights change."""
    data = open_data(folders, input_weights_from=".5:.1,.8,.1", padding=padding)
    whole = stream(data, 4, changed=300, shuffle=shuffle)
    for position in (0, 4, 256, 296, 300, 304, 512, 560):
        again = stream(data, 4, position, 600 - position, shuffle=shuffle)
        np.testing.assert_array_equal(again, whole[position:])
    if padding == "fixed":
        for batch_size, position in ((1, 0), (3, 7), (100, 200), (5, 298)):
            again = stream(data, batch_size, position, 300, shuffle=shuffle)
            np.testing.assert_array_equal(again, whole[position:][: len(again)])


@pytest.mark.parametrize("padding", ["fixed", "uniform"])
def test_records_before_the_change_do_not_depend_on_it(folders, padding):
    data = open_data(folders, input_weights_from=".5:.1,.8,.1", padding=padding)
    before = stream(data, 4)
    after = stream(data, 4, changed=300)
    change = 300 if padding == "fixed" else 512  # the end of a window of 64 batches
    np.testing.assert_array_equal(before[:change], after[:change])
    assert not np.array_equal(before[change:], after[change:])


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_set_has_epochs_of_its_own(folders, shuffle):
    read = stream(open_data(folders), 4, num_records=1000, shuffle=shuffle)
    orders = []
    for number, size in enumerate(SIZES.values()):
        own = read[read[:, 0] == number, 1]
        epochs = [own[start : start + size] for start in range(0, len(own) - size + 1, size)]
        assert len(epochs) >= 1
        for epoch in epochs:
            assert sorted(epoch) == list(range(size))
        orders += [tuple(epoch) for epoch in epochs]
    assert len(set(orders)) == (len(orders) if shuffle else len(SIZES))


@pytest.mark.parametrize("padding", ["fixed", "dynamic", "uniform"])
def test_weights_are_shares_of_the_tokens(folders, padding):
    """With the exact means of whole epochs; records of a set differ in length."""
    data = open_data(folders, padding=padding)
    tokens = [one.tokens_per_record for one in data.mixture.sets]
    assert tokens[:2] == [16, 4]
    read = stream(data, 4, num_records=4 * 64 * 20)
    counts = np.bincount(read[:, 0])
    shares = counts * tokens / (counts * tokens).sum()
    np.testing.assert_allclose(shares, [0.5, 0.2, 0.3], atol=2 * 16 / read[:, 2].sum())
    sums = np.bincount(read[:, 0], read[:, 2])
    np.testing.assert_allclose(sums / sums.sum(), [0.5, 0.2, 0.3], atol=0.01)


def test_uniform_padding_joins_rows_of_similar_length(folders):
    spreads = {}
    for padding in ("dynamic", "uniform"):
        lengths = stream(open_data(folders, padding=padding), 4, num_records=4 * 64)[:, 2]
        spreads[padding] = np.ptp(lengths.reshape(-1, 4), 1).mean()
    assert spreads["uniform"] < spreads["dynamic"] / 4


def test_masks_of_a_record_differ_between_epochs_of_its_set(folders):
    data = open_data(folders)
    num_records = sum(SIZES.values())
    order = next(data.mixture.orders(0, 1000, 1, 1))
    epochs, indices = np.divmod(order, num_records)
    assert len(set(order.tolist())) == 1000  # (epoch, record), from which masks are drawn
    for start, size in zip((0, 37, 48), SIZES.values(), strict=True):
        own = epochs[(indices >= start) & (indices < start + size)]
        np.testing.assert_array_equal(own, np.arange(len(own)) // size)


def test_two_workers_read_without_overlap(folders):
    """Each worker opens the data by itself and takes its part of every batch."""
    shares = []
    for worker in (0, 1):
        reader = open_data(folders).reader("train", None, 1)
        batches = pipeline.training_batches(reader, batch_size=4, position=0, shuffle=True)
        parts = [divide_batch(batch, 2, 1)[worker] for batch in itertools.islice(batches, 16)]
        shares.append(np.concatenate([part["input_ids"][0, :, :2] for part in parts]))
    number, size = 2, SIZES["code"]  # the set that has not ended its first epoch
    codes = np.concatenate([own[own[:, 0] == number, 1] for own in shares])
    assert len(codes) == len(set(codes.tolist())) <= size
    both = np.stack([own.reshape(16, 2, 2) for own in shares], 1).reshape(-1, 2)
    np.testing.assert_array_equal(both, stream(open_data(folders), 4, num_records=64)[:, :2])


def test_a_mixture_is_part_of_the_identity(folders):
    assert "sets" not in open_data(folders, weights=None).identity()
    first, *others = [
        open_data(folders, weights).identity() for weights in ("1,1,2", "3,3,6", "1,1,1")
    ]
    assert first == others[0] != others[1]
    assert first["sets"][1]["name"] == "books" and first["sets"][1]["weights"] == [0.25]


@pytest.mark.parametrize(
    "changes",
    [dict(input_weights=text) for text in ("1,1", "1,0,1", "1,-1,1", "1,nan,1", "1,inf,1", "1,,1")]
    + [dict(input_weights=text) for text in ("1,x,1", ".5:1,1,1")]
    + [dict(input_weights=f"temperature:{text}") for text in ("0", "1.1", "x", "-.3", "")]
    + [
        dict(input_weights="1,1,1", input_weights_from=text)
        for text in ("0:1,1,1", "1:1,1,1", "nan:1,1,1", "-.1:1,1,1", "1,1,1", ".5:1,1", ".5:1,0,1")
    ],
)
def test_bad_weights_are_one_line(changes):
    name = list(changes)[-1]
    with pytest.raises(UserError) as raised:
        InputConfig(input_file="a,b,c", **changes)
    text = str(raised.value)
    assert text.startswith(f"--{name}={changes[name]}: must be ") and "names 3" in text
    assert len(text) < 300


@pytest.mark.parametrize("exponent", [0.3, 1.0])
def test_weights_by_size(folders, exponent):
    """Shares of the tokens that are read, within .5 %, and of the sizes in tokens."""
    data = open_data(folders, f"temperature:{exponent}")
    sizes = [one.num_records * one.tokens_per_record for one in data.mixture.sets]
    expected = np.array(sizes) ** exponent / np.sum(np.array(sizes) ** exponent)
    found = [one.weights[0] for one in data.mixture.sets]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    rows = stream(data, 8, num_records=16000)
    tokens = np.bincount(rows[:, 0], rows[:, 2], len(SIZES))
    np.testing.assert_allclose(tokens / tokens.sum(), expected, atol=0.005)
    changed = open_data(folders, f"temperature:{exponent}", input_weights_from=".5:.1,.8,.1")
    assert [one.weights[1] for one in changed.mixture.sets] == pytest.approx([0.1, 0.8, 0.1])


def test_a_set_that_is_named_twice_is_one(folders):
    with pytest.raises(UserError, match="names .*web twice, which is one data set; name it once"):
        open_data(folders, "1,1,1", ("web", "books", "web"))


def test_folders_of_one_name_have_names_of_their_own(folders, tmp_path):
    for name in ("web", "books"):
        shutil.copytree(folders / name, tmp_path / name / "128")
    parts = ",".join(f"{tmp_path}/{name}/128/x0.tfrecord" for name in ("web", "books"))
    evals = ",".join(f"{tmp_path}/{name}/128/x1.tfrecord" for name in ("books", "web"))
    data = Dataset(InputConfig(input_file=parts, input_weights="1,1", eval_input_file=evals))
    assert [one.name for one in data.mixture.sets] == ["web_128", "books_128"]
    assert data.validation_parts == dict(
        data_books_128_loss=range(5), data_web_128_loss=range(5, 23)
    )


def test_a_set_without_records_is_named(folders, tmp_path):
    (tmp_path / "none").mkdir()
    with records.ShardWriter(str(tmp_path / "none" / "x.tfrecord")):
        pass
    parts = f"{folders}/web/*,{tmp_path}/none/*"
    with pytest.raises(UserError, match=r"none/x\.tfrecord: holds no training record"):
        Dataset(InputConfig(input_file=parts, input_weights="1,1"))


def test_epochs_and_passes_of_each_set():
    a = MixedSet("a", 100, 5, 10.0, [0.5, 0.25])
    b = MixedSet("b", 50, 1, 30.0, [0.5, 0.75])
    mixture = Mixture([a, b], 0.5)
    # of 800 records, the first 400 have 3/4 from a, the others 1/2
    rows = dict(mixture.rows(800))
    assert rows["data set 1"] == (
        "a: 0.5, then 0.25 of the tokens; 100 records of 10 tokens; "
        "5.00 epochs = 25.00 passes over its text"
    )
    assert "6.00 epochs = 6.00 passes" in rows["data set 2"]
    mixture.changed = 800
    assert "6.00 epochs = 30.00 passes" in dict(mixture.rows(800))["data set 1"]
    assert "epochs" not in dict(mixture.rows(0))["data set 1"]
