"""Models of sequences and items against plain PyTorch, in updates, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from runner.batch import SequenceFeature, SparseFeature, TaskSpec
from runner.models.layers.negatives import MASKED_SCORE, NegativeSampler
from runner.models.layers.sequences import SequenceLookup
from runner.models.losses import (
    BCE,
    BPR,
    InBatchSoftmax,
    SampledBCE,
    SampledSoftmax,
    check_loss_inputs,
)
from runner.training.update.task import Supervised
from tests.models.scene import from_yaml
from tests.models.sequence_scene import LONGEST, NUM_ITEMS, SCHEMA, batch_of, ids_of
from tests.models.sequence_twins import (
    STATES,
    bert4rec_row_losses,
    bst_logits,
    causal_row_losses,
    din_logits,
    mlp_logits,
    towers,
)
from tests.tiny import make_context, snapshot

SMALL = {
    "bert4rec": {"embedding_dim": 4, "num_blocks": 2, "dropout": 0.0, "uniform": 7},
    "bst": {"embedding_dim": 4, "num_blocks": 2, "num_heads": 2, "top": [6]},
    "din": {"embedding_dim": 4, "attention": [5], "top": [6]},
    "mlp": {"embedding_dim": 4, "deep": [6]},
    "two_tower": {"embedding_dim": 4, "user_tower": [6], "out": 5},
    "sasrec": {"embedding_dim": 4, "num_blocks": 2, "dropout": 0.0, "uniform": 7},
    "gru4rec": {"embedding_dim": 4, "hidden_dim": 6, "num_layers": 2, "dropout": 0.0, "uniform": 7},
    "hstu": {"embedding_dim": 4, "num_blocks": 2, "dropout": 0.0, "uniform": 7},
}
CAUSAL = sorted(STATES)
LOSSES = {
    "bst": BCE,
    "din": BCE,
    "mlp": BCE,
    "two_tower": InBatchSoftmax,
    **dict.fromkeys(("bert4rec", *CAUSAL), SampledSoftmax),
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def make(name, kind="sgd", *, loss=None, micro=1 << 20, lr=0.1, schema=SCHEMA, amp=False, **more):
    model = from_yaml(name, schema, **{**SMALL[name], **more})
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():  # no weight at a value that hides a mistake, such as 0
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    context = make_context(
        kind,
        lr=lr,
        micro_batch_size=micro,
        model=model,
        loss=loss or LOSSES[name](schema),
        amp=amp,
    )
    for tensor_name, tensor in context.tables.state().items():
        if tensor_name.endswith("/weight"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.5)
    return context


def leaves(context):
    p = {n: w.detach().double().requires_grad_() for n, w in context.model.named_parameters()}
    tables = {
        n.removesuffix("/weight"): t.detach().double().clone().requires_grad_()
        for n, t in context.tables.state().items()
        if n.endswith("/weight")
    }
    return p, tables


def assert_step_equals(context, before, p, tables, lr):
    """SGD took the twin's gradients, of dense weights and of tables."""
    for name, weight in context.model.named_parameters():
        grad = p[name].grad if p[name].grad is not None else torch.zeros_like(p[name])
        torch.testing.assert_close(
            weight.double(), p[name].detach() - lr * grad, rtol=1e-4, atol=1e-5, msg=name
        )
    for name, table in tables.items():
        if f"{name}/weight" not in context.tables.state():
            continue
        found = context.tables.state()[f"{name}/weight"].double()
        torch.testing.assert_close(
            found, table.detach() - lr * table.grad, rtol=1e-4, atol=1e-5, msg=name
        )


def step(context, batch):
    context.tables.set_lr_and_step(0.1, 1)
    return Supervised().train_step(context, iter([batch]))


@pytest.mark.parametrize("candidates", [None, 1, 5, 13])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_look_ups_of_sequences_and_candidates_are_rows_of_the_tables(kind, candidates):
    context = make("din", kind)
    lookup = SequenceLookup(
        SCHEMA, 4, features=SCHEMA.sparse, sequences=SCHEMA.sequences, candidates="item"
    )
    lookup.attach_tables(context.tables)
    batch = batch_of()
    ids_C = None if candidates is None else torch.arange(candidates) * 2 + 1
    embeddings = lookup(batch, ids_C)
    tables = {n: context.tables.state()[f"{n}/weight"] for n in ("user", "item", "genres")}
    pooled = [[tables[n][row].sum(0) for row in ids_of(batch, n)] for n in tables]
    torch.testing.assert_close(embeddings.pooled_BE, torch.cat([torch.stack(x) for x in pooled], 1))
    for row, history in enumerate(ids_of(batch, "history")):
        kept = history[-LONGEST:]
        assert embeddings.per_row["history:length"][row] == len(kept)
        assert embeddings.per_row["history:ids"][row].tolist() == kept + [0] * (LONGEST - len(kept))
        torch.testing.assert_close(
            embeddings.sequences_BLD[0][row, : len(kept)], tables["item"][kept]
        )
        assert not embeddings.sequences_BLD[0][row, len(kept) :].any()
    if ids_C is not None:
        torch.testing.assert_close(embeddings.shared_CD[0], tables["item"][ids_C])
    assert torch.equal(lookup.embed_all_rows(NUM_ITEMS, torch.device("cpu"), 11), tables["item"])


def test_an_update_reaches_a_row_by_all_its_look_ups_at_once():
    context = make("din")
    lookup = context.model.embedding
    batch, tables = batch_of(), leaves(context)[1]
    lookup.num_candidate_slots, lookup.candidate_feature = LONGEST, "history"
    ids_C = torch.tensor([3, 3, 8])
    embeddings = lookup(batch, ids_C)
    grads = [torch.randn(t.shape) for t in embeddings.tensors()]
    torch.autograd.backward(embeddings.tensors(), grads)
    column = 0
    for name in ("user", "item", "genres"):
        for row, ids in enumerate(ids_of(batch, name)):
            (tables[name][ids].sum(0) @ grads[0][row, column : column + 4].double()).backward()
        column += 4
    for row, history in enumerate(ids_of(batch, "history")):
        for place, i in enumerate(history[-LONGEST:]):
            (tables["item"][i] @ grads[1][row, place].double()).backward()
    (tables["item"][ids_C] * grads[2].double()).sum().backward()
    for name, table in tables.items():
        found = context.tables.state()[f"{name}/weight"].double()
        torch.testing.assert_close(found, table.detach() - 0.1 * table.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "twin"), [("bst", bst_logits), ("din", din_logits), ("mlp", mlp_logits)]
)
def test_a_model_of_rows_and_all_its_gradients_equal_the_twins(name, twin):
    context, batch = make(name), batch_of()
    p, tables = leaves(context)
    output = step(context, batch)
    logits_BT = twin(p, tables, batch)
    torch.testing.assert_close(
        output.predictions[0].logits_BT.double(), logits_BT, rtol=1e-5, atol=1e-5
    )
    losses = functional.binary_cross_entropy_with_logits(
        logits_BT[:, 0], batch.labels_BT[:, 0].double(), reduction="none"
    )
    (losses @ batch.weights_B.double() / batch.weights_B.sum().double()).backward()
    assert_step_equals(context, None, p, tables, 0.1)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_model_of_all_items_and_all_its_gradients_equal_the_twins(name):
    context, batch = make(name, every=True, uniform=0), with_history(batch_of())
    p, tables = leaves(context)
    output = step(context, batch)
    losses = causal_row_losses(name, p, tables["item"], batch, 2)
    found_B = output.losses[0]["click"].double()
    for ours, twin in zip(found_B, losses):
        torch.testing.assert_close(ours, twin.detach(), rtol=1e-5, atol=1e-5)
    total = sum(w * loss for w, loss in zip(batch.weights_B.double(), losses))
    (total / batch.weights_B.sum().double()).backward()
    assert_step_equals(context, None, p, tables, 0.1)


def test_bert4rec_of_all_items_and_all_its_gradients_equal_the_twins():
    context, batch = make("bert4rec", every=True, uniform=0, mask_share=0.4), batch_of()
    p, tables = leaves(context)
    masks_BL = context.model.draw_masks(batch)
    output = step(context, batch)
    losses = bert4rec_row_losses(p, tables["item"], batch, masks_BL.tolist(), 2)
    found_B = output.losses[0]["click"].double()
    torch.testing.assert_close(found_B, torch.stack(losses).detach(), rtol=1e-5, atol=1e-5)
    total = sum(w * loss for w, loss in zip(batch.weights_B.double(), losses))
    (total / batch.weights_B.sum().double()).backward()
    assert_step_equals(context, None, p, tables, 0.1)


def test_masks_have_their_share_and_depend_on_seed_epoch_and_row():
    model, batch = make("bert4rec", mask_share=0.3).model, batch_of(2000)
    masks_BL = model.draw_masks(batch)
    places = 2000 * LONGEST  # four standard deviations of the mean of so many draws
    assert abs(float(masks_BL.float().mean()) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / places)
    part = replace(batch, rows_B=batch.rows_B[700:900])
    assert torch.equal(model.draw_masks(part), masks_BL[700:900])
    later = model.draw_masks(replace(batch, cursor=replace(batch.cursor, epoch=1)))
    model.seed += 1
    for other_BL in (later, model.draw_masks(batch)):
        # of independent draws, 2 x 0.3 x 0.7 differ
        assert abs(float((other_BL != masks_BL).float().mean()) - 0.42) < 0.03


def with_history(batch):
    """Rows without a history get weight 0, since the twin does not define them."""
    lengths_B = batch.sequences.lengths()
    return replace(batch, weights_B=batch.weights_B * (lengths_B > 0))


@pytest.mark.parametrize("half_life", [None, 1.5])
def test_two_towers_and_all_their_gradients_equal_the_twins(half_life):
    context = make("two_tower", uniform=4, popularity=3, half_life=half_life)
    batch = batch_of(16)
    counts = torch.arange(NUM_ITEMS) % 7
    context.model.set_item_counts({"item": counts})
    p, tables = leaves(context)
    sampled = context.model.negatives.sample(batch.cursor)
    output = step(context, batch)
    queries, items = towers(p, tables, batch, 0.1, half_life or math.inf)
    torch.testing.assert_close(
        output.predictions[0].logits_BT[:, 0].double(),
        (queries * items).sum(1).detach(),
        rtol=1e-5,
        atol=1e-5,
    )
    vectors = torch.stack([tower_of(p, tables["item"][i]) for i in sampled])
    ids = [i for [i] in ids_of(batch, "item")]
    positive = [b for b in range(16) if batch.labels_BT[b, 0] > 0.5]
    share = counts.clamp(min=1).double() / counts.sum()
    q = 4 / NUM_ITEMS + (3 + len(positive)) * share
    total = torch.zeros((), dtype=torch.float64)
    for b in positive:
        own = (queries[b] @ items[b] - q[ids[b]].log()).exp()
        others = [(items[a], ids[a]) for a in positive]
        others += [(vectors[c], int(i)) for c, i in enumerate(sampled)]
        rest = sum((queries[b] @ v - q[i].log()).exp() for v, i in others if i != ids[b])
        total = total - (own / (own + rest)).log() * batch.weights_B[b].double()
    (total / batch.weights_B.sum().double()).backward()
    assert_step_equals(context, None, p, tables, 0.1)


def test_dropout_applies_to_the_input_of_the_users_tower_only():
    context, batch = make("two_tower", embedding_dropout=1.0), batch_of(16)
    seen = []
    context.model.user.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    context.model.thing.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    context.model(batch)
    context.model.eval()(batch)
    users, items, users_in_evaluation, items_in_evaluation = seen
    assert not users.any() and users_in_evaluation.any(1).all()
    assert torch.equal(items, items_in_evaluation)


def tower_of(p, embedded):
    vector = embedded @ p["thing.0.weight"].T + p["thing.0.bias"]
    return vector / vector.norm()


@pytest.mark.parametrize(
    ("name", "leave_out", "special"), [*((n, True, 0) for n in CAUSAL), ("sasrec", False, 3)]
)
def test_ranks_among_all_items_are_those_of_a_plain_count(name, leave_out, special):
    context, batch = make(name), batch_of()
    p, tables = leaves(context)
    model = context.model.eval()
    model.item = replace(model.item, num_special=special)  # rows that stand for no item
    model.open_catalogue(leave_history_out=leave_out, list_length=5)
    model.popularity_I = torch.arange(NUM_ITEMS)
    aux = model(batch).aux
    ranks, lists = aux["rank_B"], (aux["top_BK"] + special).tolist()
    assert aux["popularity_I"].tolist() == list(range(special, NUM_ITEMS))
    model.close_catalogue()
    assert "rank_B" not in model(batch).aux
    rows = zip(ids_of(batch, "history"), ids_of(batch, "item"))
    for row, (history, [target]) in enumerate(rows):
        if not history:
            continue
        scores = tables["item"] @ STATES[name](p, tables["item"], history, 2)[-1]
        gone = set(history[-LONGEST:]) if leave_out else set()
        items = range(special, NUM_ITEMS)
        better = [i for i in items if scores[i] >= scores[target]]
        rank = 1 + len(set(better) - gone - {target}) if target >= special else math.inf
        assert ranks[row] == rank
        allowed = [i for i in items if i == target or i not in gone]
        assert lists[row] == sorted(allowed, key=lambda i: -scores[i])[:5]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("bst", {}),
        ("din", {}),
        ("sasrec", {}),
        ("bert4rec", {}),
        ("gru4rec", {}),
        ("hstu", {}),
        ("sasrec", {"every": True, "uniform": 0}),
        ("sasrec", {"every_place": False, "popularity": 5}),
        ("two_tower", {"in_batch": False, "uniform": 5}),
    ],
)
@pytest.mark.parametrize("kind", ["rowwise_adagrad", "adam"])
def test_micro_batches_equal_one_batch(name, more, kind):
    states = []
    for micro in (24, 7):
        loss = SampledSoftmax(SCHEMA) if name == "two_tower" else None
        context = make(name, kind, micro=micro, loss=loss, **more)
        for seed in range(3):
            step(context, batch_of(24, seed))
        states.append(snapshot(context))
    for key, value in states[0].items():
        # Adam divides by the gradient's size, which magnifies a difference in the last digit
        atol = 2e-3 if kind == "adam" and "exp_avg" not in key else 1e-5
        torch.testing.assert_close(states[1][key], value, rtol=0, atol=atol, msg=key)


@pytest.mark.parametrize("name", SMALL)
def test_bf16_autocast_is_close_to_full_precision(name):
    outputs = [step(make(name, amp=amp), batch_of(32)) for amp in (False, True)]
    full, half = (output.predictions[0].logits_BT for output in outputs)
    assert half.dtype == torch.float32
    assert 0 < (full - half).abs().max() < 0.25 * full.abs().max()


@pytest.mark.parametrize("name", SMALL)
def test_a_batch_without_a_row_of_label_1_or_with_one_row_is_no_trouble(name):
    for batch in (batch_of(4, positive=0.0), batch_of(1, positive=1.0)):
        context = make(name)
        output = step(context, batch)
        assert output.applied
        assert torch.isfinite(output.losses[0]["click"]).all()


def test_losses_over_candidates_are_their_formulas():
    own = torch.tensor([1.0, -0.5])
    others = torch.tensor([[0.3, MASKED_SCORE, 2.0], [0.1, 0.2, -1.0]])
    log_q_own, log_q = torch.tensor([0.2, 0.1]), torch.tensor([-1.0, 0.4, 0.7])
    aux = {"positive_P": own, "candidates_PC": others, "row_P": torch.tensor([2, 0])}
    prediction = step(make("sasrec"), batch_of(3)).predictions[0]
    plain = replace(prediction, aux=aux)
    corrected = replace(
        prediction, aux={**aux, "log_q_positive_P": log_q_own, "log_q_candidates_C": log_q}
    )

    def rows(loss, p):
        return loss(SCHEMA)(p)["click"].tolist()

    def softmax(row, q_own, q):
        logits = torch.cat(((own - q_own)[row : row + 1], (others - q)[row]))
        return float(functional.cross_entropy(logits, torch.tensor(0)))

    for p, q_own, q in ((plain, 0 * own, 0 * log_q), (corrected, log_q_own, log_q)):
        expected = [softmax(1, q_own, q), 0, softmax(0, q_own, q)]
        assert rows(SampledSoftmax, p) == pytest.approx(expected)
    assert SampledSoftmax(SCHEMA, log_q=False)(corrected)["click"].tolist() == rows(
        SampledSoftmax, plain
    )
    sp = functional.softplus
    first = (sp(others[0, 0] - own[0]) + sp(others[0, 2] - own[0])) / 2
    second = sp(others[1] - own[1]).mean()
    assert rows(BPR, plain) == pytest.approx([float(second), 0, float(first)])
    first = sp(-own[0]) + (sp(others[0, 0]) + sp(others[0, 2])) / 2
    second = sp(-own[1]) + sp(others[1]).mean()
    assert rows(SampledBCE, plain) == pytest.approx([float(second), 0, float(first)])


def test_negatives_depend_on_the_place_in_the_stream_and_follow_the_counts():
    torch.manual_seed(0)
    negatives = NegativeSampler(1000, uniform=200, popularity=1000)
    counts = torch.zeros(1000)
    counts[:10] = torch.arange(1, 11)
    negatives.counts_I.copy_(counts)
    first, again, other = (negatives.sample(batch_of(4, seed).cursor) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    uniform, popular = first.split([200, 1000])
    assert len(uniform.unique()) > 150
    seen = torch.bincount(popular, minlength=1000)
    expected = counts / counts.sum() * 1000
    chi_square = ((seen - expected)[:10] ** 2 / expected[:10]).sum()
    assert seen[10:].sum() == 0
    assert chi_square < 27.9  # 9 degrees of freedom, one in a thousand
    q = negatives.log_q(torch.tensor([9, 500]), 50).exp()
    assert q.tolist() == pytest.approx([0.2 + 1000 * 10 / 55, 0.2 + 1000 / 55])


def without(*names, **more):
    return replace(SCHEMA, sparse=tuple(f for f in SCHEMA.sparse if f.name not in names), **more)


OTHER_TABLE = (SequenceFeature("history", 50, 5),)
REFUSED = {
    "no sequence": (["bst", "din", *CAUSAL], replace(SCHEMA, sequences=()), {}, "needs a sequence"),
    "nothing that reads its table": (["bst", "din", *CAUSAL], without("item"), {}, "table.*'item'"),
    "sequence of another table": (
        ["sasrec"],
        replace(SCHEMA, sequences=OTHER_TABLE),
        {"item": "item"},
        "item=item: reads table 'item', but sequence 'history' reads 'history'",
    ),
    "a sequence it lacks": (["sasrec"], SCHEMA, {"sequence": "histroy"}, "nearest: 'history'"),
    "an item it lacks": (["sasrec"], SCHEMA, {"item": "itm"}, "item=itm.*nearest: 'item'"),
    "items it lacks": (["two_tower"], SCHEMA, {"item": ["itm"]}, "item=itm.*nearest: 'item'"),
    "which is the item": (
        ["two_tower"],
        replace(SCHEMA, sequences=()),
        {},
        "name the features of the item.*user, item, genres",
    ),
    "drawn items have no genres": (
        ["two_tower"],
        SCHEMA,
        {"item": ["item", "genres"], "uniform": 5},
        r"only the id of a drawn item is known.*item=\[item\]",
    ),
    "a user that tells the item": (
        ["two_tower"],
        replace(
            SCHEMA,
            sparse=(*SCHEMA.sparse, SparseFeature("kind", 9)),
            sequences=(*SCHEMA.sequences, SequenceFeature("history_kind", 9, 5, "kind")),
        ),
        {},
        r"kind reads the table of sequence history_kind.*item=\[item,kind\]",
    ),
    "several sequences of features": (
        ["sasrec"],
        replace(
            SCHEMA,
            sequences=(*SCHEMA.sequences, SequenceFeature("users", 20, 5, "user")),
        ),
        {},
        "several sequences; there are history, users",
    ),
    "no user": (
        ["two_tower"],
        replace(without("user", "genres"), dense=(), sequences=()),
        {"item": ["item"]},
        "a feature of the user",
    ),
    "two tasks": (
        ["sasrec", "two_tower"],
        replace(SCHEMA, tasks=(TaskSpec("a"), TaskSpec("b"))),
        {},
        r"one binary task.*a \(binary\), b",
    ),
    "a regression": (
        ["sasrec", "two_tower"],
        replace(SCHEMA, tasks=(TaskSpec("stars", "regression"),)),
        {},
        r"one binary task.*stars \(regression\)",
    ),
    "heads": (
        ["bst", "hstu", "sasrec"],
        SCHEMA,
        {"num_heads": 3},
        "num_heads=3: must divide embedding_dim=4",
    ),
    "nothing to compare with": (["sasrec"], SCHEMA, {"uniform": 0}, "nothing to compare"),
    "all and some": (["sasrec"], SCHEMA, {"every": True}, "every=true"),
    "more than there are": (
        ["sasrec"],
        SCHEMA,
        {"uniform": 31},
        "uniform=31: must be from 0 to the 30",
    ),
    "temperature": (["two_tower"], SCHEMA, {"temperature": 0.0}, "temperature=0.0"),
    "half-life": (["two_tower"], SCHEMA, {"half_life": 0.0}, "half_life=0.0"),
    "attention of nothing": (["din"], SCHEMA, {"attention": [0]}, "widths"),
}


def test_of_several_sequences_that_of_the_item_is_read():
    more = replace(SCHEMA, sequences=(SequenceFeature("history_kind", 9, 5), *SCHEMA.sequences))
    assert from_yaml("sasrec", more, **SMALL["sasrec"]).history == "history"


@pytest.mark.parametrize(
    ("name", "schema", "settings", "message"),
    [(n, schema, s, m) for names, schema, s, m in REFUSED.values() for n in names],
    ids=[f"{what}-{n}" for what, (names, *_) in REFUSED.items() for n in names],
)
def test_what_is_missing_or_does_not_fit_is_refused_while_building(name, schema, settings, message):
    with pytest.raises(ValueError, match=message):
        from_yaml(name, schema, **{**SMALL[name], **settings})


def test_a_loss_over_candidates_is_refused_for_a_model_that_has_none():
    din, towers_, sasrec = (make(name).model for name in ("din", "two_tower", "sasrec"))
    for model, loss in ((din, BCE), (towers_, InBatchSoftmax), (sasrec, BPR), (sasrec, BCE)):
        check_loss_inputs(model, loss(SCHEMA))
    with pytest.raises(ValueError, match="BPR needs candidates, which DIN does not"):
        check_loss_inputs(din, BPR(SCHEMA))
    with pytest.raises(ValueError, match=r"items of the other rows.*SASRec.*sampled_softmax"):
        check_loss_inputs(sasrec, InBatchSoftmax(SCHEMA))


@pytest.mark.parametrize("name", SMALL)
def test_one_batch_is_memorised(name):
    context = make(name, "adam")
    context.dense_optimizer = torch.optim.Adam(context.dense_parameters, lr=0.02)
    losses = []
    for number in range(1, 81):
        context.tables.set_lr_and_step(0.02, number)
        output = Supervised().train_step(context, iter([batch_of(24)]))
        losses.append(float(output.losses[0]["click"].mean()))
    assert losses[-1] < 0.35 * losses[0]
