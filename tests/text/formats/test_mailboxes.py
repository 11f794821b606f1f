"""A format of text is a reader and a row: mailboxes (mbox) are added here and read by the real
commands, by their ending, by their first bytes and by their name.

The commands run in another Python, because --help and the choices are made when the settings are
imported; PROGRAM adds the row before.
"""

import email
import email.policy
import json
import os
import subprocess
import sys

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.text.formats.table import FORMATS, Format
from tests.test_architecture import ROOT

ROW = Format(
    name="mbox",
    help="mbox = mailboxes",
    description="mbox: every message is a document",
    endings=(".mbox",),
    magic=(b"From ",),
    is_streamed=False,
    reader=f"{__name__}.message_texts",
)


def message_texts(pieces, text_format, name):
    """The plain text of the messages in a mailbox."""
    # Imports the settings, which list the formats, so it must follow the row of this one.
    from bert_gpu.text.formats.rows import decoded_lines

    message = None
    for number, line in enumerate(decoded_lines(pieces, name), 1):
        if line.startswith("From "):
            if message is not None:
                yield text_of(message)
            message = []
        elif message is None:
            problem = f"line {number} is not the begin of a message"
            raise UserError(problem, "copy it again", where=name)
        else:
            message.append(line.removeprefix(">") if line.startswith(">From ") else line)
    if message is not None:
        yield text_of(message)


def text_of(lines):
    message = email.message_from_string("".join(lines), policy=email.policy.default)
    body = message.get_body(("plain",))
    return "" if body is None else body.get_content()


PROGRAM = """
import contextlib, io, json, sys
from bert_gpu.text.formats.table import FORMATS
from tests.text.formats.test_mailboxes import ROW
FORMATS[ROW.name] = ROW
from bert_gpu.__main__ import main
results = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        with contextlib.redirect_stderr(io.StringIO()) as error:
            try:
                code = main(["bert-gpu", *arguments])
            except SystemExit as end:  # of --help
                code = end.code or 0
    results.append([code, output.getvalue(), error.getvalue()])
print(json.dumps(results))
"""
NUM_MESSAGES = 40


def letter(number):
    """The sentences of a message."""
    return (
        f"Dear friend {number}, the river turns the mill.",
        "Nobody counts the sacks of flour.",
        f"From the hill we saw {number} boats.",
        "They were late.",
    )


def message(number):
    first, second, third, fourth = letter(number)
    return (
        f"From miller@example.org Mon Jan  1 00:00:{number:02} 2001\n"
        f"Subject: sacks\nFrom: miller@example.org\n\n"
        f"{first} {second}\n\n>{third} {fourth}\n\n"
    )


def data(text, folder, *flags):
    sizes = ["--vocab_size=200", "--dupe_factor=1", "--num_workers=1"]
    return ["data", f"--input_file={text}", f"--output_dir={folder}", *sizes, *flags]


COMMANDS = dict(
    lines=data("same.txt", "lines"),
    ending=data("in", "ending", "--vocab_file=lines/vocab.txt"),
    piped=data("-", "piped", "--vocab_file=lines/vocab.txt"),
    broken=data("broken.mbox", "out"),
    unknown=data("in", "out", "--input_format=maildir"),
    help=["data", "--helpfull"],
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(folder, {name: (exit code, output, error)}) of the commands."""
    folder = tmp_path_factory.mktemp("mailboxes")
    mailbox = "".join(map(message, range(NUM_MESSAGES)))
    (folder / "in").mkdir()
    (folder / "in" / "letters.mbox").write_text(mailbox)
    (folder / "broken.mbox").write_text("Subject: nothing\n" + mailbox)
    documents = ("\n".join(letter(number)) for number in range(NUM_MESSAGES))
    (folder / "same.txt").write_text("\n\n".join(documents))
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*COMMANDS.values()])],
        cwd=folder,
        input=mailbox,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    return folder, dict(zip(COMMANDS, json.loads(result.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", ["ending", "piped"])
def test_it_gives_the_shards_of_the_same_text(world, name):
    """As lines; a folder's file is known by its ending, standard input by its first bytes."""
    folder, results = world
    (code, output, error), (code_of_lines, *_) = results[name], results["lines"]
    assert code == code_of_lines == 0, error
    assert "mbox: every message is a document (by its name)" in output
    content, expected = (
        {path.name: path.read_bytes() for path in (folder / place).iterdir() if path.is_file()}
        for place in (name, "lines")
    )
    manifest = json.loads(content.pop("dataset.json"))
    del expected["dataset.json"]
    assert content == expected and "pretrain-00000-of-00001.tfrecord" in content
    assert manifest["settings"]["input_format"] == "mbox"
    assert manifest["num_documents"] == NUM_MESSAGES


def test_help_offers_it(world):
    code, output, _ = world[1]["help"]
    words = " ".join(output.split())
    assert code == 0 and "; mbox = mailboxes. All but lines have one document per" in words
    assert f"One of: auto, {', '.join(FORMATS)}, mbox." in words


def test_a_broken_file_and_an_unknown_format_are_errors(world):
    code, _, error = world[1]["broken"]
    assert code == 2
    assert error == "broken.mbox: line 1 is not the begin of a message; copy it again\n"
    code, _, error = world[1]["unknown"]
    assert code == 2 and "--input_format" in error and "mbox" in error
    assert not (world[0] / "out").exists() or os.listdir(world[0] / "out") == [".pretrain.lock"]
