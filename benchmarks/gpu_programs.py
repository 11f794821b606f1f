#!/usr/bin/env python3
"""The compiled training step on a GPU without TensorFlow, beside PyTorch: for machines that have
JAX and PyTorch alone.

    python benchmarks/gpu_programs.py --write=PROGRAMS --jax_python=PYTHON    # where TensorFlow is
    python benchmarks/gpu_programs.py --run=PROGRAMS --json=docs/data/gpu_programs.json
        [--predictions=docs/data/ahead.json]    # on the GPU
    python benchmarks/gpu_programs.py --table --json=docs/data/gpu_programs.json

`--write` lowers the steps of BERT (loss and gradients, and the update) with TensorFlow and stores
them as StableHLO, some hundred KB each; PYTHON has JAX. `--run` compiles them with the JAX of this
Python, runs them on random inputs, and trains Hugging Face's BertForPreTraining on the same number
of tokens in turn. A step is both programs; on one GPU nothing else is computed. Kernels and bytes
are those that this GPU's compiler chose, beside what was predicted without one
(benchmarks/ahead.py). Each case is in the JSON file when it is done, and is not measured again.
"""

import itertools
import json
import pathlib
import sys
import tempfile

from helpers import ahead_hlo
from helpers.command import Failed, benchmark_parser, names_among, numbers
from helpers.process import Peer
from helpers.report import hardware, origin, print_origin, print_table, read_results, write_results

FLAGS = "--xla_allow_excess_precision=false"  # as bert_gpu.base.environment sets
VARIANTS = {  # settings of ahead_lowering.Lowering, attention's dropout
    "plain": ({}, 0.1),
    "cuDNN": (dict(attention="cudnn"), 0.0),
    "plain packed": (dict(packed=True), 0.1),
    "cuDNN packed": (dict(attention="cudnn", packed=True), 0.0),
}
PREDICTED = {  # names in ahead.py
    "cuDNN": "cuDNN, attention dropout 0",
    "plain packed": "plain, packed",
    "cuDNN packed": "cuDNN, packed",
}
TORCH = {  # settings of hugging_face.HuggingFace, attention's dropout
    "PyTorch compiled": (dict(compiled=True), 0.1),
    "PyTorch compiled, attention dropout 0": (dict(compiled=True), 0.0),
    "PyTorch eager": ({}, 0.1),
}
TOKENS = dict(base=32768, large=16384)  # of a step
MODELS = ("tiny", *TOKENS)
MANIFEST = "manifest.json"


def write(options):
    """Write the programs of all cases and the manifest that --run reads."""
    from helpers.shapes import flops_per_token, shape_of  # need what a GPU machine may lack

    folder, cases = pathlib.Path(options.write), {}
    folder.mkdir(parents=True, exist_ok=True)
    for model, length, name in itertools.product(options.model, options.length, options.variant):
        settings, dropout = VARIANTS[name]
        key = f"{model} {length}: {name}"
        print(key, file=sys.stderr, flush=True)
        rows = max(1, (options.tokens or TOKENS[model]) // length)
        shape = shape_of(model)
        settings = settings | dict(length=length)
        settings["shape"] = shape | dict(attention_probs_dropout_prob=dropout)
        flops = rows * length * flops_per_token(model, length, bool(settings.get("packed")))
        cases[key] = dict(model=model, length=length, rows=rows, shape=shape, flops=flops)
        cases[key]["programs"] = write_programs(options, folder, key, settings, rows)
    (folder / MANIFEST).write_text(json.dumps(dict(cases=cases, **hardware()), indent=1) + "\n")
    total = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {len(cases)} cases, {total / 2**20:.1f} MB")


def write_programs(options, folder, key, settings, rows):
    """Write the files of one case; return {"gradients", "update": {"file", "arguments"}}."""
    programs, stem = {}, key.replace(":", "").replace(",", "").replace(" ", "-")
    with (
        tempfile.TemporaryDirectory() as scratch,
        Peer("ahead_lowering", settings) as lowering,
        Peer("programs_jax", {}, options.jax_python) as converter,
    ):
        for name, arguments in (("gradients", dict(rows=rows)), ("update", {})):
            path, file = f"{scratch}/program.pb", f"{stem}-{name}.mlir.gz"
            lowering.ask(name, path=path, **arguments)
            converted = converter.ask("convert", path=path, output=str(folder / file))
            programs[name] = dict(file=file, arguments=converted["arguments"])
    return programs


def run(options):
    """Measure all cases of a folder that --write has written."""
    folder, results = pathlib.Path(options.run), read_results(options.json)
    manifest = json.loads((folder / MANIFEST).read_text())
    peers = {
        f"{case['model']} {case['length']}: {name}": case | dict(torch=TORCH[name])
        for case in manifest["cases"].values()
        for name in options.peer
    }
    for key, case in (manifest["cases"] | peers).items():
        if key in results.setdefault("cases", {}):
            continue
        print(key, file=sys.stderr, flush=True)
        try:
            if "torch" in case:
                result = measure_torch(options, case)
            else:
                result = measure(options, folder, case)
        except Failed as problem:
            result = dict(error=str(problem)[:200])
        facts = {name: case[name] for name in ("model", "length", "rows", "flops")}
        results["cases"][key] = facts | result
        results |= origin()
        write_results(options.json, results)
    return results


def measure(options, folder, case):
    """Return {"seconds" of a step, "gradients", "update": of each program}."""
    programs = {}
    for name, program in case["programs"].items():
        path, arguments = str(folder / program["file"]), program["arguments"]
        with (
            tempfile.TemporaryDirectory() as scratch,
            Peer("programs_jax", dict(flags=FLAGS, folder=scratch)) as peer,
        ):
            opened = peer.ask("open", path=path, arguments=arguments)
            seconds = peer.ask("time", seconds=options.seconds)
            counts = counted(opened.pop("text"))
            programs[name] = opened | dict(seconds=seconds) | counts
    return programs | dict(seconds=sum(program["seconds"] for program in programs.values()))


def counted(path):
    """Return {"kernels", "bytes" outside products} of a compiled module's text; {} when it has
    operations that cannot be counted.
    """
    if path is None:
        return {}
    try:
        kernels = ahead_hlo.kernels(pathlib.Path(path).read_text())
    except ValueError as problem:
        return dict(uncounted=str(problem)[:100])
    others = [kernel for kernel in kernels if kernel.kind == "other"]
    return dict(
        kernels=sum(kernel.times for kernel in kernels),
        bytes=sum(kernel.num_bytes * kernel.times for kernel in others),
    )


def measure_torch(options, case):
    """Return {"seconds" of a step} of Hugging Face on PyTorch."""
    extra, dropout = case["torch"]
    shape = case["shape"] | dict(attention_probs_dropout_prob=dropout)
    settings = dict(shape=shape, length=case["length"], precision="bfloat16", gpu=options.gpu)
    with Peer("hugging_face", settings | extra) as peer:
        ready = peer.ask("prepare", rows=case["rows"])
        if not ready["fits"]:
            raise Failed(ready["error"])
        return dict(seconds=peer.ask("turn", seconds=options.seconds)["step_seconds"])


def print_results(results, predictions):
    rows, best = [], {}
    for key, case in results["cases"].items():
        part, name = key.split(": ")
        if "error" in case:
            rows.append([part, name, *["-"] * 7, case["error"][:60]])
            continue
        tokens = case["rows"] * case["length"] / case["seconds"]
        side = "PyTorch" if name.startswith("PyTorch") else "ours"
        best.setdefault(part, {}).setdefault(side, []).append((tokens, name))
        step = case.get("gradients", {})
        predicted = predictions.get(f"{part}: {PREDICTED.get(name, name)}", {}).get("gradients", {})
        num_bytes = step.get("bytes"), predicted.get("other_bytes")
        cells = [f"{1e3 * case['seconds']:.2f}"]
        cells.append(f"{1e3 * case['update']['seconds']:.2f}" if "update" in case else "-")
        cells += [f"{tokens:,.0f}", f"{case['flops'] / case['seconds'] / 1e12:.0f}"]
        cells += [str(source.get("kernels", "-")) for source in (step, predicted)]
        gigabytes = ("-" if value is None else f"{value / 1e9:.1f}" for value in num_bytes)
        rows.append([part, name, *cells, " / ".join(gigabytes), ""])
    header = ["model, S", "step", "ms", "update ms", "tokens/s", "TFLOP/s", "kernels", "predicted"]
    print_table([*header, "GB outside products / predicted", "note"], rows)
    for part, sides in best.items():
        if len(sides) == 2:
            (mine, name), (theirs, peer) = max(sides["ours"]), max(sides["PyTorch"])
            print(f"\n{part}: {name} is {mine / theirs:.2f} x {peer}")


def make_parser():
    parser = benchmark_parser(__doc__, "json", "table")
    parser.add_argument("--write", help="folder for the programs")
    parser.add_argument("--run", help="folder of the programs")
    parser.add_argument("--jax_python", help="of --write: a Python with JAX")
    parser.add_argument("--model", type=names_among(MODELS), default=list(TOKENS))
    parser.add_argument("--length", type=numbers(int), default=[128, 512], help="tokens of a row")
    parser.add_argument("--variant", type=names_among(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--tokens", type=int, help="of a step; default: base 32,768, large 16,384")
    parser.add_argument("--seconds", type=float, default=4.0, help="that each program runs")
    parser.add_argument("--peer", type=names_among(TORCH), default=list(TORCH))
    parser.add_argument("--predictions", help="JSON file of benchmarks/ahead.py")
    parser.add_argument("--cpu", dest="gpu", action="store_false", help="PyTorch on the CPU")
    return parser


def main():
    parser = make_parser()
    options = parser.parse_args()
    if sum(map(bool, (options.write, options.run, options.table))) != 1:
        parser.error("give either --write, --run or --table")
    if options.write and not options.jax_python:
        parser.error("--write: needs a Python with JAX, --jax_python")
    try:
        if options.write:
            write(options)
            return
        results = read_results(options.json)
        if not options.table:
            print_origin(origin())
            results = run(options)
        print_results(results, read_results(options.predictions).get("kernels", {}))
    except Failed as failed:
        sys.exit(f"error: {failed}")


if __name__ == "__main__":
    main()
