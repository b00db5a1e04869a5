"""Programs as tracers print them, and models, beside torch.compile: the page of docs and its plots.

usage: python -m benchmarks.speedups [--device cpu|cuda [--machine NAME] ROWS.log...]

Rows that ``printed_graphs run --incumbent`` printed are merged into results/printed_graphs.json;
of these, of gpu_models.json and ablation.json docs/speedups.md and the plots are made (needs
matplotlib).
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.cpu_page import DOCS, RESULTS, Row, field, table
from benchmarks.measure import environment, save_rows
from integration_tests.models import hf

SUITE, KEY = "printed_graphs", ("device", "name")
HUGGING_FACE = {entry.name for entry in (*hf.NAMED, *hf.EXTRA)}
RIVALS = {"ours": "torchstrata", "theirs": "torch.compile"}
COLOURS = {"ours": "#2a7f62", "theirs": "#c0562f"}


def printed_rows(path: Path, device: str) -> Iterator[Row]:
    """The rows in a log; on CUDA devices the times are those with the device awaited."""
    for line in path.read_text().splitlines():
        text = line.removeprefix("row ")
        if not text.startswith("{"):
            continue
        row = json.loads(text) if text != line else ast.literal_eval(text)
        for rival in RIVALS:
            if f"{rival} awaited" in row:
                row[f"{rival} speed"] = row.pop(f"{rival} awaited")
        if "their error" in row:
            row["their error"] = row["their error"].partition("\n")[0]
        yield {"device": device, **row}


def is_whole(row: Row, graphs: str, breaks: str) -> bool:
    return row.get(graphs) == 1 and not row.get(breaks)


def summary(rows: Sequence[Row]) -> list[str]:
    """What became of the programs of one device, as lines of a table."""
    ours = [r for r in rows if is_whole(r, "graphs", "graph_breaks") and not r["fallbacks"]]
    theirs = [
        r for r in rows if is_whole(r, "their graphs", "their breaks") and "their error" not in r
    ]
    beside = [row for row in rows if "theirs speed" in row]
    cold = median(row["cold"] / row["their cold"] for row in beside)
    means = {rival: geometric_mean(row[f"{rival} speed"] for row in beside) for rival in RIVALS}
    return [
        f"| programs, of them Hugging Face | {len(rows)}, {len(hugging_face(rows))} |",
        f"| one graph without a break or fallback | {len(ours)} ({len(theirs)} by torch.compile) |",
        f"| speed-up over eager, geometric mean | {means['ours']:.2f} "
        f"({means['theirs']:.2f} by torch.compile) |",
        f"| first call, median share of torch.compile's | {cold:.2f} |",
    ]


def hugging_face(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["name"].partition(".")[0] in HUGGING_FACE]


def models_on_cuda(rows: Sequence[Row]) -> list[Row]:
    """The Hugging Face rows of benchmarks.gpu_models in inference, with the speed-ups of both."""
    return [
        {"ours speed": row["eager"], "theirs speed": row["eager"] / row["tc"]}
        for row in rows
        if row["model"].startswith("hf-") and row["mode"] == "inference" and "tc" in row
    ]


def draw(groups: Mapping[str, Sequence[Row]], device: str, path: Path) -> None:
    """The share of each group that has at least each speed-up over eager; a line style per group."""
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.rcParams["svg.hashsalt"] = SUITE
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for rival, name in RIVALS.items():
        for (kind, rows), style in zip(groups.items(), ("-", ":")):
            speeds = sorted(row[f"{rival} speed"] for row in rows if "theirs speed" in row)
            shares = [100 * (1 - place / len(speeds)) for place in range(len(speeds))]
            label = f"{name}, {len(speeds)} {kind}"
            axes.step(speeds, shares, style, where="pre", color=COLOURS[rival], label=label)
    axes.axvline(1, color="#999", linewidth=0.8)
    axes.set(xscale="log", xlabel=f"speed-up over eager on {device} (logarithmic)",
             ylabel="share with at least that, %")  # fmt: skip
    axes.set_xticks(ticks := [0.5, 1, 2, 4, 8, 16, 32], [f"{tick:g}" for tick in ticks])
    axes.legend(frameon=False, loc="lower left")
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(path, metadata=nothing, bbox_inches="tight")


PAGE = """\
# Programs beside torch.compile

`python -m benchmarks.speedups` makes this page of saved rows of `benchmarks/printed_graphs.py` (see `benchmarks/results`): timm,
torchvision and transformers architectures with random weights, exported by `torch.export`, printed, and compiled as a program whose
weights are arguments; inference at batch 2 and small images or sequences. Speeds are medians of turns in one process; many such
processes ran at once, so ratios say more than times.
"""


ABLATION = """\
## What each optimisation is worth

The geometric mean of the speed-ups over eager with all optimisations, and without each: processor time of one thread on the CPU, time
with the device awaited on CUDA devices. The saved rows are those of

`OMP_NUM_THREADS=1 python -m benchmarks.ablation --device DEVICE --modes MODE --rounds 5 --save MODELS`

with, on the CPU, the models bert gpt2 llama t5 vit resnet18 convnext_tiny efficientnet_b0 swin_tiny mixer unet dlrm stencil hf-bert
hf-gpt2 hf-t5 hf-bart hf-llama hf-qwen3 hf-gemma2 hf-whisper hf-deberta hf-swin hf-mamba hf-convnext hf-mixtral, and on an H200 (with
`--jobs 12`) all models of `benchmarks.gpu_models` before the Hugging Face rows.
"""


def ablation() -> list[str]:
    """The saved tables, one for each device and mode: all on, and without each."""
    path = RESULTS / "ablation.json"
    if not path.exists():
        return []
    rows = json.loads(path.read_text())["rows"]
    columns = ["optimisations", "speed-up over eager", "loss", "models"]
    lines = [ABLATION]
    for kind in dict.fromkeys((row["device"], row["mode"], row["dtype"]) for row in rows):
        device, mode, dtype = kind
        chosen = [row for row in rows if (row["device"], row["mode"], row["dtype"]) == kind]
        chosen.sort(key=lambda row: (row["optimisations"] != "all", row["speed-up over eager"]))
        lines += [f"### {mode.capitalize()} on {device} in {dtype}", ""]
        lines += [*table(chosen, {name: field(name) for name in columns}), ""]
    return lines


MODELS = """\
## Hugging Face models on cuda

The rows of `benchmarks.gpu_models` in `benchmarks/results`: {count} architectures of two layers with random weights and padded masks,
inference in bfloat16 on one {device}. Many compiled at once; each was measured alone. The geometric mean of the speed-ups over eager
is {ours:.1f} ({theirs:.2f} by torch.compile). Such small models wait for the host most of the time, which recorded graphs spare.

![distribution of speed-ups of models on cuda](speedups_models.svg)
"""


def models_section(rows: Sequence[Row], device: str) -> str:
    means = {rival: geometric_mean(row[f"{rival} speed"] for row in rows) for rival in RIVALS}
    return MODELS.format(count=len(rows), device=device, **means)


def page(by_device: dict[str, list[Row]], models: str) -> str:
    """The page; the plots are beside it."""
    lines = [PAGE]
    for device, rows in by_device.items():
        lines += [f"## {device}", "", "| | |", "|---|---|", *summary(rows), ""]
        lines += [f"![distribution of speed-ups on {device}](speedups_{device}.svg)", ""]
    return "\n".join([*lines, models, *ablation()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--machine", help="where the rows were measured, if not here")
    parser.add_argument("logs", nargs="*", type=Path)
    chosen = parser.parse_args()
    context = environment() | ({"device": chosen.machine} if chosen.machine else {})
    for log in chosen.logs:
        save_rows(SUITE, context, [*printed_rows(log, chosen.device)], KEY)
    saved: dict[str, Any] = json.loads((RESULTS / f"{SUITE}.json").read_text())
    by_device: dict[str, list[Row]] = {}
    for row in saved["rows"]:
        by_device.setdefault(row["device"], []).append(row)
    for device, rows in by_device.items():
        groups = {"programs (all)": rows, "programs (Hugging Face)": hugging_face(rows)}
        draw(groups, device, DOCS / f"speedups_{device}.svg")
    on_cuda = json.loads((RESULTS / "gpu_models.json").read_text())
    models = models_on_cuda(on_cuda["rows"])
    draw({"models": models}, "cuda", DOCS / "speedups_models.svg")
    section = models_section(models, on_cuda["environment"]["device"])
    (DOCS / "speedups.md").write_text(page(by_device, section))


if __name__ == "__main__":
    main()
