"""One self-contained HTML page of a comparison: no network, readable on a phone, in the dark and by keyboard.

Everything that comes from a bundle is escaped; the page's policy forbids all loading.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from tidegauge.compare.exact_types import ExactComparison
from tidegauge.compare.report import words
from tidegauge.compare.report.chart import chart, profile
from tidegauge.compare.report.exact import exact_headline, exact_section
from tidegauge.compare.report.figures import gains, histogram
from tidegauge.compare.report.ladder import rungs_section
from tidegauge.compare.report.network import network
from tidegauge.compare.report.words import decibels, number, percent
from tidegauge.compare.types import Comparison, Culprit, LayerResult, Picture

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_PICTURED = 6


def render_html(comparison: Comparison) -> str:
    """The page as text. Needs nothing but the comparison, so it can be drawn again from its JSON."""
    first = comparison.culprits[0].index if comparison.culprits else 0
    title = f"Tidegauge: {words.headline(comparison)}, {comparison.subject.model}"
    body = [
        '<header class="virtual">VIRTUAL: this run is from the emulated board, not from hardware</header>'
        if comparison.subject.virtual
        else "",
        "<main>",
        _verdict(comparison),
        rungs_section(comparison.rungs) if comparison.rungs is not None else "",
        *(_culprit(comparison, culprit) for culprit in comparison.culprits),
        _cure(comparison),
        _network(comparison),
        _chart(comparison),
        _table(comparison),
        _recovered(comparison),
        exact_section(comparison.exact) if comparison.exact is not None else "",
        _findings(comparison),
        _unmatched(comparison),
        _provenance(comparison),
        "</main>",
    ]
    return page(title, "".join(body), [_detail(layer) for layer in comparison.layers], first)


def render_exact(answer: ExactComparison) -> str:
    """A page of a bit-exact comparison alone."""
    title = f"Tidegauge: {exact_headline(answer)}, bit by bit"
    kind = {0: "", 1: " bad", 2: " thin", 3: " thin"}[answer.exit_code]
    head = (
        f'<div class="verdict{kind}"><b class="word">{escape(exact_headline(answer))}</b>'
        f"<h1>{escape(answer.sentence)}</h1></div>"
    )
    return page(title, f"<main>{head}{exact_section(answer)}</main>", [], 0)


def page(title: str, body: str, layers: list[dict[str, object]], first: int) -> str:
    """The whole page around a body; `layers` is what its script shows of each."""
    data = json.dumps(layers, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head>"
        f'<body data-first="{first}">{body}'
        f'<script type="application/json" id="layers">{data}</script>'
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return files("tidegauge.compare.report").joinpath(name).read_text("utf-8")


def _verdict(comparison: Comparison) -> str:
    kind = {0: "", 1: " bad", 2: " thin", 3: " thin"}[comparison.exit_code]
    subject, coverage = comparison.subject, comparison.coverage
    told = [subject.model, subject.device, subject.created]
    tracing = {True: "tracing changed the output", False: "output the same with and without tracing", None: ""}
    facts = [
        f"{coverage.compared} of {coverage.traced} traced layers compared",
        *(f"output {o.name}: SQNR {decibels(o.metrics.sqnr_db)}" for o in comparison.outputs),
        tracing[comparison.tracing_changed_output],
    ]
    return (
        f'<div class="verdict{kind}"><b class="word">{escape(words.headline(comparison))}</b>'
        f"<h1>{escape(comparison.sentence)}</h1>{_to_do(comparison)}"
        f'<p class="soft small">{escape(" · ".join(t for t in told if t))}<br>'
        f"{escape(' · '.join(f for f in facts if f))}</p></div>"
    )


def _to_do(comparison: Comparison) -> str:
    """What to change, where the eye falls first."""
    found = words.to_do(comparison)
    if found is None:
        return ""
    text, option = found
    code = f"<br><code>{escape(option)}</code>" if option else ""
    return f'<p class="todo"><b>What to change:</b> {escape(text)}.{code}</p>'


def _culprit(comparison: Comparison, culprit: Culprit) -> str:
    layer = comparison.layers[culprit.index]
    facts = [
        ("cause", culprit.cause.replace("_", " ")),
        ("the cause explains", percent(culprit.explained)),
        ("local error over the noise", f"{number(culprit.excess)}×"),
        *words.effect(culprit),
        *_exact(culprit),
        ("type", layer.dtype or "–"),
        ("scale, zero point", f"{number(layer.scale, 6)}, {layer.zero_point}"),
        ("scale from", words.SOURCES[layer.scale_source]),
        ("weights", words.weights(layer)),
    ]
    pictures = culprit.pictures if culprit.rank <= _PICTURED else ()
    sides = ""
    if layer.profiles is not None and culprit.rank <= _PICTURED:
        sides = profile(layer.profiles.rows, "row") + profile(layer.profiles.columns, "column")
        sides += profile(layer.profiles.channels, "channel")
    if culprit.rank <= _PICTURED:
        sides += histogram(layer)
    block, pasted = f"advice-{culprit.rank}", escape(words.paste(culprit.advice, comparison))
    title = f'Culprit {culprit.rank}: <span class="mono">{escape(culprit.layer)}</span>'
    body = (
        f"{_facts(facts)}"
        f'<h3>What to change</h3><div class="advice"><pre id="{block}">{pasted}</pre>'
        f'<button type="button" data-copy="{block}">Copy</button> '
        f'<button type="button" data-show="{culprit.index}">Show in the chart</button></div>'
        f'{_pictures(pictures)}<div class="pictures">{sides}</div>'
    )
    if culprit.rank == 1:  # the page's headline has said it
        return f'<section class="card culprit"><h2>{title}</h2>{body}</section>'
    summary = f"<summary><h2>{title}</h2><p>{escape(culprit.sentence)}</p></summary>"
    return f'<details class="card culprit">{summary}{body}</details>'


def _exact(culprit: Culprit) -> list[tuple[str, str]]:
    if culprit.what_if is None:
        return []
    figure = culprit.what_if
    value = (
        "not finite" if figure.error is None else decibels(figure.sqnr_db) if figure.sqnr_db is not None else "exact"
    )
    return [(f"output {figure.output} if this layer were exact", value)]


def _cure(comparison: Comparison) -> str:
    """What to change, all in one, with what each step gains."""
    cure = comparison.cure
    if cure is None or not words.foretold(cure):
        return ""
    paste = ""
    if cure.advice:
        paste = (
            f'<div class="advice"><pre id="cure">{escape(words.paste(cure.advice))}</pre>'
            '<button type="button" data-copy="cure">Copy</button></div>'
        )
    steps = "".join(
        f"<li><code>{escape(step.layer)}</code> {escape(words.CHANGES[step.change])}: "
        f"{escape(decibels(step.after.sqnr_db))}</li>"
        for step in cure.steps
    )
    listed = (
        f"<details><summary>{'One step' if len(cure.steps) == 1 else f'{len(cure.steps)} steps'}, in the order of what "
        f"they gain</summary><ol>{steps}</ol></details>"
    )
    return (
        '<section class="card culprit"><h2>What to change, all together</h2>'
        f"<p>{escape(words.prediction(cure))}</p>{paste}"
        f"{gains(cure)}{listed if cure.steps else ''}</section>"
    )


def _network(comparison: Comparison) -> str:
    drawing = network(comparison.layers)
    if not drawing:
        return ""
    legend = "".join(
        f'<span class="n-{kind}"><svg viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12"/></svg>'
        f"{text}</span>"
        for kind, text in words.VERDICTS.items()
    )
    buttons = "".join(
        f'<button type="button" data-zoom="{act}" aria-label="{label}">{sign}</button>'
        for act, sign, label in (("in", "+", "zoom in"), ("out", "−", "zoom out"), ("fit", "all", "show all"))
    )
    return (
        f'<h2>The network</h2><div class="frame">{drawing}<div class="zoom">{buttons}</div></div>'
        f'<div class="legend">{legend}<span>number: local error over the healthy noise</span></div>'
    )


def _pictures(pictures: Sequence[Picture]) -> str:
    """The worst channel, and beside it what is of all channels; then, smaller, the others."""
    planes = [picture for picture in pictures if picture.kind != "scatter"]
    worst = [picture for picture in planes if picture.channel == planes[0].channel]
    others = [picture for picture in planes if picture.channel != planes[0].channel]
    worst += [picture for picture in pictures if picture.kind == "scatter"]
    rows = [("pictures", worst), ("pictures small", others)]
    return "".join(f'<div class="{kind}">{"".join(map(_picture, row))}</div>' for kind, row in rows if row)


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    text = f"{picture.label}: {number(picture.low)} to {number(picture.high)}"
    if picture.kind != "scatter":
        text = f"{picture.label}, channel {picture.channel}: {number(picture.low)} to {number(picture.high)}"
    image = f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{escape(text)}</figcaption></figure>"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<li><span>{escape(name)}</span><b>{escape(value)}</b></li>" for name, value in facts)
    return f'<ul class="facts">{items}</ul>'


def _chart(comparison: Comparison) -> str:
    legend = "".join(
        f'<span><svg viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" class="v-{kind}"/></svg>'
        f"{text}</span>"
        for kind, text in words.VERDICTS.items()
    )
    return (
        "<h2>Layers in execution order</h2>"
        f'<div class="scroll">{chart(comparison.layers)}</div><div class="legend">{legend}'
        "<span>dashed: ten times the healthy noise</span></div>"
        '<div class="card" id="detail" aria-live="polite"></div>'
    )


def _detail(layer: LayerResult) -> dict[str, object]:
    """What the page shows of a layer on hover, tap or focus."""
    local, run = layer.local, layer.cumulative
    facts = [
        ("verdict", words.verdict(layer)),
        ("local error over the noise", f"{number(layer.excess)}×"),
        ("with float weights", f"{number(layer.float_excess)}×"),
        ("weights", words.weights(layer)),
        ("SQNR, local", words.quality(local)),
        ("SQNR, cumulative", words.quality(run)),
        ("cosine, cumulative", number(run.cosine if run else None, 5)),
        ("gain, local", number(local.gain if local else None, 4)),
        ("bias in steps", number(local.bias_steps if local else None)),
        ("largest error in steps", number(local.max_steps if local else None)),
        ("codes off by one / more", f"{percent(layer.codes_off_by_one)} / {percent(layer.codes_off_by_more)}"),
        ("does not fit the code range", percent(layer.clipped_share)),
        ("at the lowest / highest code", f"{percent(layer.low_share)} / {percent(layer.high_share)}"),
        ("type, scale, zero point", f"{layer.dtype or '–'}, {number(layer.scale, 6)}, {layer.zero_point}"),
        ("scale from", words.SOURCES[layer.scale_source]),
        ("calibrated range used", percent(layer.range_use.used if layer.range_use else None)),
        ("matched by", words.MATCHED[layer.matched]),
        ("ONNX nodes", ", ".join(layer.nodes) or "–"),
        ("dims (N,1,2,C,H,W)", "×".join(map(str, layer.dims)) or "–"),
        ("data id", str(layer.data_id)),
    ]
    title = f"{layer.name or layer.file} ({' + '.join(layer.operators) or 'no float twin'})"
    return {"title": title, "reason": layer.reason, "facts": facts}


_COLUMNS = (
    ("#", True),
    ("Layer", False),
    ("Operators", False),
    ("Verdict", False),
    ("Local / noise", True),
    ("Local SQNR", True),
    ("Total SQNR", True),
    ("Max steps", True),
    ("Type", False),
    ("Why", False),
)


def _table(comparison: Comparison) -> str:
    heads = "".join(
        f'<th scope="col"{" class=n" if numeric else ""}><button type="button">{name}</button></th>'
        for name, numeric in _COLUMNS
    )
    rows = "".join(_row(layer) for layer in comparison.layers)
    kinds = "".join(f'<option value="{kind}">{text}</option>' for kind, text in words.VERDICTS.items())
    return (
        '<h2>All layers</h2><div class="filter"><input type="search" id="filter" '
        'placeholder="Filter by name, operator, reason" aria-label="Filter layers">'
        f'<select id="only" aria-label="Verdict"><option value="">all verdicts</option>{kinds}</select> '
        '<span id="shown" class="soft small" aria-live="polite"></span></div>'
        f'<div class="scroll"><table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(layer: LayerResult) -> str:
    local = layer.local.sqnr_db if layer.local else None
    run = layer.cumulative.sqnr_db if layer.cumulative else None
    steps = layer.local.max_steps if layer.local else None
    why = "" if layer.verdict == "healthy" and layer.status == "ok" else layer.reason
    return (
        f'<tr data-verdict="{layer.verdict}" data-row="{layer.index}"'
        f"{' class=faulty' if layer.verdict == 'faulty' else ''}>"
        f'<td class="n">{layer.index}</td>'
        f'<td class="name mono">{escape((layer.name or layer.file) + words.estimated(layer))}</td>'
        f"<td>{escape(' + '.join(layer.operators)) or '–'}</td>"
        f'<td><span class="tag t-{layer.verdict}">{escape(words.verdict(layer))}</span></td>'
        f"{_cell(layer.excess, number(layer.excess))}{_cell(local, words.quality(layer.local))}"
        f"{_cell(run, words.quality(layer.cumulative))}"
        f"{_cell(steps, number(steps))}<td>{escape(layer.dtype or '–')}</td>"
        f'<td class="why">{escape(why)}</td></tr>'
    )


def _cell(value: float | None, text: str) -> str:
    return f'<td class="n" data-key="{"" if value is None else value}">{escape(text)}</td>'


def _recovered(comparison: Comparison) -> str:
    if not comparison.recovered:
        return ""
    items = "".join(f"<li>{escape(item.sentence)}</li>" for item in comparison.recovered)
    return f'<h2>Wrong by themselves, without effect on the output</h2><ul class="plain">{items}</ul>'


def _findings(comparison: Comparison) -> str:
    if not comparison.findings:
        return ""
    items = "".join(
        f'<li class="{finding.severity}"><b>{finding.severity}:</b> {escape(finding.sentence)}</li>'
        for finding in comparison.findings
    )
    return f'<h2>What else to know</h2><ul class="plain">{items}</ul>'


def _unmatched(comparison: Comparison) -> str:
    if not comparison.unmatched:
        return ""
    items = "".join(
        f"<li><code>{escape(item.name)}</code> ({item.side}"
        f"{f', data id {item.data_id}' if item.data_id is not None else ''}): {escape(item.reason)}</li>"
        for item in comparison.unmatched
    )
    return f'<h2>Not compared: no partner on the other side</h2><ul class="plain">{items}</ul>'


def _provenance(comparison: Comparison) -> str:
    subject = comparison.subject
    sources = ", ".join(f"{count} from {name}" for name, count in sorted(comparison.scale_sources.items()))
    rows = [
        ("source", subject.source),
        ("bundle", subject.bundle_id or ""),
        ("device", subject.device or ""),
        ("captured", subject.created or ""),
        ("model", subject.model),
        ("input", subject.input),
        ("scales", sources),
        ("Tidegauge", f"{comparison.tool}, schema {comparison.schema}, {comparison.seconds} s"),
        *((f"version of {name}", value) for name, value in sorted(subject.versions.items())),
        *((f"sha256 of {name}", value) for name, value in sorted(subject.hashes.items())),
        *((f"option {name}", value) for name, value in sorted(subject.options.items())),
    ]
    items = "".join(f'<dt>{escape(name)}</dt><dd class="mono">{escape(value)}</dd>' for name, value in rows if value)
    return f"<h2>Where this comes from</h2><dl>{items}</dl>"
