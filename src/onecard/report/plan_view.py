"""A RunPlan as a document, in the order a person asks: does it fit, how long, what comes out, what does it cost.

show(plan_document(plan(load("gpt2"), find_gpu("RTX 4070"))), "terminal")
"""

from onecard.messages import Formula, T
from onecard.planner.result import RunPlan
from onecard.report.document import (
    Block,
    Column,
    Document,
    Figure,
    Figures,
    Notes,
    Quantity,
    Section,
    Table,
    Text,
    always,
)
from onecard.report.plan_fit import Formulas, memory_section, time_section, ways_section
from onecard.report.plan_result import data_section, known_runs_section, loss_section, money_section
from onecard.report.plan_summary import (
    RANGES,
    card_name,
    described_shape,
    headline,
    part_name,
    summary,
)


def plan_document(plan: RunPlan, explain: bool = False) -> Document:
    """Every figure of the plan; with `explain`, each with its formula and source."""
    why = {path: Formula(text) for path, text in plan.formulas.items()} if explain else {}
    sections = [
        memory_section(plan, why),
        time_section(plan, why),
        ways_section(plan),
        loss_section(plan, why),
        money_section(plan, why),
        data_section(plan, why),
        _model(plan, why),
        _compute(plan, why),
        known_runs_section(plan, explain),
    ]
    if plan.warnings:
        sections.append(always(T("Warnings"), Notes(tuple(plan.warnings), "fair")))
    return Document(
        title=T("What this run needs"),
        subtitle=subtitle(plan),
        headline=headline(plan),
        sections=tuple(section for section in sections if section.blocks),
        summary=summary(plan),
        footer=RANGES,
    )


def subtitle(plan: RunPlan) -> T:
    config = plan.config
    return T(
        "{card} · {dtype} · {shape} · batch {batch} × {block} × {accumulation}",
        card=card_name(plan),
        dtype=plan.dtype,
        shape=described_shape(config),
        batch=config.batch_size,
        block=config.block_size,
        accumulation=config.gradient_accumulation_steps,
    )


def _model(plan: RunPlan, why: Formulas) -> Section:
    params = plan.params
    rows = (
        Figure(T("Parameters"), Quantity(params.total, "int"), formula=why.get("params.total")),
        Figure(
            T("As nanoGPT prints it"),
            Quantity(params.nanogpt, "count"),
            note=T("without position embeddings"),
            formula=why.get("params.nanogpt"),
        ),
        Figure(
            T("Without embeddings"),
            Quantity(params.non_embedding, "count"),
            formula=why.get("params.non_embedding"),
        ),
    )
    parts = Table(
        (
            Column(T("Part of the model")),
            Column(T("parameters"), "right"),
            Column(T("share"), "right"),
        ),
        tuple(
            (part_name(key), Quantity(size, "int"), Quantity(size / params.total, "percent"))
            for key, size in params.parts.items()
            if size
        ),
        bar=1,
    )
    return Section(T("The model"), (Figures(rows), parts))


def _compute(plan: RunPlan, why: Formulas) -> Section:
    flops = plan.flops
    rows: tuple[tuple[Text, float, float, str], ...] = (
        (T("nanoGPT's (6N + 12·L·C·T)"), flops.per_token_nanogpt, flops.total_nanogpt, "nanogpt"),
        (T("rough rule (6·N·D)"), flops.per_token_6n, flops.total_6nd, "6nd"),
        (
            T("as computed (every matmul, causal attention)"),
            flops.per_token_exact,
            flops.total_exact,
            "exact",
        ),
    )
    table = Table(
        (
            Column(T("Convention")),
            Column(T("FLOPs per token"), "right"),
            Column(T("total FLOPs"), "right"),
        ),
        tuple(
            (label, Quantity(each, "power"), Quantity(total, "power"))
            for label, each, total, _ in rows
        ),
    )
    blocks: list[Block] = [table]
    formulas = [
        (
            label,
            why.get(f"flops.per_token_{name.replace('6nd', '6n')}")
            or why.get(f"flops.total_{name}"),
        )
        for label, _, _, name in rows
    ]
    if any(formula for _, formula in formulas):
        blocks.append(
            Notes(
                tuple(
                    T("{name}: {formula}", name=label, formula=formula)
                    for label, formula in formulas
                    if formula
                )
            )
        )
    return Section(T("Compute"), tuple(blocks))
