"""Lists the kernels that a program compiled by XLA launches on a GPU, with the bytes that each
reads and writes and the FLOPs of products.

It reads the text of the optimized module (HLO), as --xla_dump_to writes it. Bytes are those of the
arrays, or parts of arrays, that a kernel reads and writes. On a GPU caches serve some of them, and
some are moved more than once: this is a count, not a measurement. Raises ValueError for operations
that it cannot count.
"""

import dataclasses
import json
import math
import re

SIZES = dict(token=0, pred=1, s8=1, u8=1, s16=2, u16=2, f16=2, bf16=2, s32=4, u32=4, f32=4)  # bytes
SIZES |= dict(s64=8, u64=8, f64=8)
ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
OPERAND = re.compile(r"%([\w.\-]+)")
CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations|true_computation)=\{?%([\w.\-]+)")
FREE = set("parameter constant get-tuple-element tuple bitcast after-all opt-barrier".split())
PARTS = {"slice", "dynamic-slice", "gather"}  # they read no more than they return
# value by value
LIKE = set("bitcast convert add subtract multiply divide select maximum exponential".split())
UNCOUNTED = set(
    "conditional async-start all-reduce-start copy-start send recv infeed outfeed".split()
)


@dataclasses.dataclass
class Instruction:
    name: str
    arrays: list  # (type, dimensions) of the result
    opcode: str
    operands: list  # names
    inside: str  # of the parentheses
    rest: str  # of the line

    @property
    def num_values(self):
        return sum(math.prod(dimensions) for _, dimensions in self.arrays)

    @property
    def num_bytes(self):
        return sum(size_of(kind) * math.prod(dimensions) for kind, dimensions in self.arrays)


def size_of(kind):
    """Return the bytes of a value."""
    if kind not in SIZES:
        raise ValueError(f"type {kind}: not known")
    return SIZES[kind]


@dataclasses.dataclass
class Kernel:
    """times: launches in one run of the program. num_bytes, flops: of one launch; only products and
    attention have flops.
    """

    name: str
    kind: str  # "product", "attention" or "other"
    num_bytes: float
    flops: float
    times: int


def closing(text, start):
    """Return the index of the parenthesis that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if not depth:
            return index
    raise ValueError(f"parenthesis never closed: {text[:80]}")


def arrays_of(text):
    return [
        (kind, [int(size) for size in sizes.split(",") if size])
        for kind, sizes in ARRAY.findall(text)
    ]


def read_instruction(line):
    name, line = line.strip().removeprefix("ROOT ").split(" = ", 1)
    end = closing(line, 0) + 1 if line.startswith("(") else line.index(" ")
    shape, line = line[:end], line[end:].strip()
    begin = line.index("(")
    end = closing(line, begin)
    inside = line[begin + 1 : end]
    return Instruction(
        name[1:], arrays_of(shape), line[:begin], OPERAND.findall(inside), inside, line[end + 1 :]
    )


def read_module(text):
    """Return {name of a computation: its instructions, the root last}, and the name of the entry
    computation.
    """
    computations, entry, current = {}, None, None
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")) and line.endswith("{"):
            name = OPERAND.search(line).group(1)
            entry = name if line.startswith("ENTRY ") else entry
            current = computations[name] = {}
        elif line.startswith("}"):
            current = None
        elif current is not None and " = " in line:
            instruction = read_instruction(line)
            current[instruction.name] = instruction
    return computations, entry


def values_read(name, inner):
    """Return the number of values of an array that a fused computation uses: all, unless its users
    read only slices or update it in place.
    """
    users = [part for part in inner.values() if name in part.operands]
    whole, used = inner[name].num_values, 0
    for user in users:
        is_first = user.operands[0] == name
        if user.opcode in PARTS and is_first:
            used += user.num_values
        elif user.opcode in ("dynamic-update-slice", "scatter") and is_first:
            used += updates_of(user, inner).num_values
        elif user.opcode in LIKE and user.num_values == whole:
            used += values_read(user.name, inner)
        else:
            return whole
    return min(whole, used) if users else whole


def updates_of(instruction, scope):
    """Return the operand that a dynamic-update-slice or a scatter writes."""
    index = 1 if instruction.opcode == "dynamic-update-slice" else 2
    return scope[instruction.operands[index]]


def bytes_read(instruction, scope, computations):
    """Return the bytes that a kernel reads; of partly used operands, only the used parts."""
    if instruction.opcode in PARTS:
        return instruction.num_bytes
    operands = [scope[name] for name in instruction.operands if name in scope]
    if instruction.opcode != "fusion":
        return sum(operand.num_bytes for operand in operands)
    inner = computations[CALLED.search(instruction.rest).group(1)]
    parameters = sorted(
        (part for part in inner.values() if part.opcode == "parameter"),
        key=lambda part: int(part.inside),
    )
    return sum(
        operand.num_bytes * values_read(parameter.name, inner) / max(1, operand.num_values)
        for parameter, operand in zip(parameters, operands, strict=True)
    )


def bytes_written(instruction, computations):
    """Return the bytes that a kernel writes; of arrays updated in place, only the updates. An s8
    result of a custom call is its workspace.
    """
    if instruction.opcode == "custom-call":
        arrays = (array for array in instruction.arrays if array[0] != "s8")
        return sum(size_of(kind) * math.prod(dimensions) for kind, dimensions in arrays)
    if instruction.opcode != "fusion":
        return instruction.num_bytes
    inner = computations[CALLED.search(instruction.rest).group(1)]
    *_, root = inner.values()
    total = 0
    for result in [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]:
        source = result
        while source.opcode in ("bitcast", "convert") and source.operands[0] in inner:
            source = inner[source.operands[0]]
        in_place = source.opcode in ("dynamic-update-slice", "scatter")
        total += updates_of(source, inner).num_bytes if in_place else result.num_bytes
    return total


def configuration_of(instruction, name):
    """Return the part of a custom call's configuration that has this name."""
    text = re.search(r"backend_config=(\{.*\})", instruction.rest).group(1)
    return json.loads(text)[name]


def product_flops(instruction, scope):
    """Return the FLOPs of a cuBLAS call: 2 x number of values of the result x length of the sum."""
    configuration = configuration_of(instruction, "gemm_backend_config")
    axes = configuration["dot_dimension_numbers"]["lhs_contracting_dimensions"]
    (_, dimensions), *_ = scope[instruction.operands[0]].arrays
    length = math.prod(dimensions[int(axis)] for axis in axes)
    return 2.0 * math.prod(instruction.arrays[0][1]) * length


def attention_flops(instruction, scope, num_products):
    """Return the FLOPs of a cuDNN call: products of the size of the scores, two forward and five
    backward; masked pairs count.
    """
    configuration = configuration_of(instruction, "cudnn_fmha_backend_config")
    num_scores = math.prod(map(int, configuration["intermediate_tensor_shape"]["dimensions"]))
    size = scope[instruction.operands[0]].arrays[0][1][-1]
    return 2.0 * num_scores * size * num_products


def read_kernel(instruction, scope, computations, times):
    num_bytes = bytes_read(instruction, scope, computations)
    num_bytes += bytes_written(instruction, computations)
    kind, flops = "other", 0.0
    if instruction.opcode == "custom-call":
        target = re.search(r'custom_call_target="([^"]*)"', instruction.rest).group(1)
        if "gemm" in target or "matmul" in target:
            kind, flops = "product", product_flops(instruction, scope)
        elif "fmha" in target:
            num_products = 5 if "Backward" in target else 2
            kind, flops = "attention", attention_flops(instruction, scope, num_products)
    return Kernel(instruction.name, kind, num_bytes, flops, times)


def kernels(text):
    """Return all Kernels of a module, in the order of its schedule."""
    computations, entry = read_module(text)

    def walk(name, times):
        scope = computations[name]
        for instruction in scope.values():
            if instruction.opcode in FREE:
                continue
            if instruction.opcode in UNCOUNTED:
                raise ValueError(f"{instruction.name}: {instruction.opcode} is not counted")
            if instruction.opcode in ("call", "while"):
                count = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', instruction.rest)
                if instruction.opcode == "while" and count is None:
                    raise ValueError(f"{instruction.name}: how often the loop runs is not known")
                rounds = int(count.group(1)) if count else 1
                yield from walk(CALLED.search(instruction.rest).group(1), times * rounds)
            else:
                yield read_kernel(instruction, scope, computations, times)

    return list(walk(entry, 1))
