"""Tables against plain PyTorch twins that compute every update row by row in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.embeddings.cpu_tables import CpuTables, run_one_by_one
from runner.embeddings.factory import build_tables
from runner.embeddings.fbgemm_tables import FbgemmTables
from runner.embeddings.interface import TableSpec, make_layout
from runner.embeddings.row_update_tables import put_rows, take_rows
from runner.embeddings.row_updates import STATE_NAMES
from runner.embeddings.sorted_ids import BagNumbers, SortedIds, sort_ids
from runner.errors import ConfigError
from runner.optim.settings import SPARSE_KINDS, SparseSettings
from runner.training.update.row_threads import RowThreads
from tests.devices import CPU, CUDA, DEVICES, ON_GPU, tolerance

# Widths interleave, "shared" is read by features that stand apart, "b" is mean-pooled.
SPECS = (
    TableSpec("shared", 7, 8, ("s1", "s2")),
    TableSpec("a", 5, 4, ("a",)),
    TableSpec("b", 6, 8, ("b",), pooling="mean"),
)
FEATURES = ("s1", "a", "b", "s2")
ROWWISE = ("rowwise_adagrad", "partial_rowwise_adam", "partial_rowwise_lamb")
ON_CPU = [
    *((FbgemmTables, kind) for kind in ("sgd", "adagrad", "rowwise_adagrad")),
    *((CpuTables, kind) for kind in SPARSE_KINDS),
]
# on CUDA FBGEMM has a kernel for every kind
ENGINES = [
    *((engine, kind, CPU) for engine, kind in ON_CPU),
    *(pytest.param(FbgemmTables, kind, CUDA, marks=ON_GPU) for kind in SPARSE_KINDS),
]
LOOK_UPS = [(FbgemmTables, CPU), (CpuTables, CPU), pytest.param(FbgemmTables, CUDA, marks=ON_GPU)]


def settings_of(kind: str) -> SparseSettings:
    decay = 0.1 if "weight_decay" in SPARSE_KINDS[kind] else 0.0
    return SparseSettings(kind, 0.05, eps=1e-3, betas=(0.8, 0.95), weight_decay=decay, eta=0.1)


def engine_of(engine, settings, specs=SPECS, features=FEATURES, device=CPU):
    layout = make_layout(specs, features, by_dim=engine is CpuTables)
    tables = engine(layout, settings, device)
    torch.manual_seed(1)
    for name, tensor in sorted(tables.state().items()):
        if name.endswith("/weight"):
            tensor.copy_(torch.randn(tensor.shape))
    return tables


def jagged(seed: int, batch_size: int = 5, weighted: bool = False) -> KeyedJaggedTensor:
    """Bags of 0 to 4 ids with duplicates inside a bag, between bags and between features."""
    torch.manual_seed(seed)
    lengths = torch.randint(0, 5, (len(FEATURES) * batch_size,))
    lengths[1] = 0
    values = torch.randint(0, 5, (int(lengths.sum()),))
    weights = torch.rand(values.numel()) + 0.5 if weighted else None
    return KeyedJaggedTensor(list(FEATURES), values, weights=weights, lengths=lengths)


class Twin:
    """The same tables with dense float64 weights; gradients by autograd, updates row by row."""

    def __init__(self, state: dict[str, Tensor], settings: SparseSettings, specs=SPECS) -> None:
        self.settings, self.specs = settings, specs
        stored = {s.name: state[f"{s.name}/weight"] for s in specs}
        self.weight = {name: t.cpu().double().clone() for name, t in stored.items()}
        self.moments = {name: [{}, {}] for name in self.weight}

    def forward(self, kjt: KeyedJaggedTensor) -> Tensor:
        for weight in self.weight.values():
            weight.requires_grad_()
        self.touched = {name: set() for name in self.weight}
        columns = []
        for feature in FEATURES:
            spec = next(s for s in self.specs if feature in s.features)
            jt = kjt[feature]
            ids = jt.values().split(jt.lengths().tolist())
            weights = jt.weights_or_none()
            weights = weights.double() if weights is not None else torch.ones(len(jt.values()))
            bags = []
            for bag_ids, bag_weights in zip(ids, weights.split(jt.lengths().tolist())):
                rows = self.weight[spec.name][bag_ids] * bag_weights[:, None]
                pooled = rows.sum(0)
                bags.append(pooled / max(len(bag_ids), 1) if spec.pooling == "mean" else pooled)
                self.touched[spec.name].update(bag_ids.tolist())
            columns.append(torch.stack(bags))
        return torch.cat(columns, 1)

    def update(self, lr: float, step: int) -> None:
        for name, weight in self.weight.items():
            grad, data = weight.grad, weight.detach().clone()
            for row in sorted(self.touched[name]):
                first, second = self.moments[name]
                data[row] = self.rule(data[row], grad[row], first, second, row, lr, step)
            self.weight[name] = data

    def rule(self, w, g, first, second, row, lr, t):
        s, kind = self.settings, self.settings.kind
        if kind == "sgd":
            return w - lr * g
        if kind == "adagrad":
            first[row] = first.get(row, 0) + g**2
            return w - lr * g / (first[row].sqrt() + s.eps)
        if kind == "rowwise_adagrad":
            first[row] = first.get(row, 0) + (g**2).mean()
            return w - lr * g / (first[row].sqrt() + s.eps)
        if kind == "lars_sgd":
            rate = lr * s.eta * w.norm() / (g.norm() + s.weight_decay * w.norm())
            first[row] = s.momentum * first.get(row, 0) + rate * (g + s.weight_decay * w)
            return w - first[row]
        (b1, b2), square = s.betas, g**2
        if kind.startswith("partial_rowwise"):
            square = square.mean()
        first[row] = b1 * first.get(row, 0) + (1 - b1) * g
        second[row] = b2 * second.get(row, 0) + (1 - b2) * square
        m, v = first[row] / (1 - b1**t), second[row] / (1 - b2**t)
        direction = m / (v.sqrt() + s.eps) + s.weight_decay * w
        trust = w.norm() / direction.norm() if kind.endswith("lamb") else 1.0
        return w - lr * trust * direction


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("engine", "kind", "device"), ENGINES)
@pytest.mark.parity("E1")
def test_three_steps_equal_the_twin(engine, kind, device, weighted):
    settings = settings_of(kind)
    tables = engine_of(engine, settings, device=device)
    near = {"rtol": tolerance(device, 2e-5, 1e-4), "atol": tolerance(device, 2e-6, 1e-5)}
    twin = Twin(tables.state(), settings)
    for step, (seed, batch_size) in enumerate([(1, 5), (2, 5), (3, 3)], start=1):
        kjt = jagged(seed, batch_size, weighted)
        tables.set_lr_and_step(0.05 / step, step)
        with torch.no_grad():
            tables(kjt.to(device))  # a score before the update is no update
        ours, theirs = tables(kjt.to(device)), twin.forward(kjt)
        torch.testing.assert_close(ours.double().cpu(), theirs, **near)
        grad = torch.randn(ours.shape)
        ours.backward(grad.to(device))
        theirs.backward(grad.double())
        twin.update(0.05 / step, step)
    state = tables.state()
    for name, weight in twin.weight.items():
        stored = state[f"{name}/weight"].double().cpu()
        torch.testing.assert_close(stored, weight.detach(), **near)
        for key, moments in zip(state_names(kind), twin.moments[name]):
            stored = state[f"{name}/{key}"].double().cpu()
            for row in range(stored.shape[0]):
                expected = moments.get(row, torch.zeros(stored.shape[1:])).double()
                torch.testing.assert_close(stored[row], expected, **near)


def state_names(kind: str) -> tuple[str, ...]:
    if kind == "sgd":
        return ()
    if kind == "lars_sgd":
        return ("momentum_buffer",)
    return ("sum",) if kind.endswith("adagrad") else ("exp_avg", "exp_avg_sq")


@pytest.mark.parametrize(("engine", "kind", "device"), ENGINES)
def test_state_has_field_names_and_shapes(engine, kind, device):
    state = engine_of(engine, settings_of(kind), device=device).state()
    names = state_names(kind)
    assert set(state) == {f"{s.name}/{k}" for s in SPECS for k in ("weight", *names)}
    for spec in SPECS:
        assert state[f"{spec.name}/weight"].shape == (spec.num_rows, spec.dim)
        for key in names:
            rowwise = kind in ROWWISE and key in ("sum", "exp_avg_sq")
            shape = (spec.num_rows,) if rowwise else (spec.num_rows, spec.dim)
            assert state[f"{spec.name}/{key}"].shape == shape


@pytest.mark.parametrize(("engine", "kind", "device"), ENGINES)
def test_copying_into_state_resumes_bit_for_bit(engine, kind, device):
    settings = settings_of(kind)

    def train(tables, steps):
        for step in steps:
            tables.set_lr_and_step(0.05, step)
            pooled = tables(jagged(step, weighted=True).to(device))
            pooled.backward(torch.full_like(pooled, 0.3) * pooled.detach().sign())

    whole = engine_of(engine, settings, device=device)
    train(whole, range(1, 7))
    before = engine_of(engine, settings, device=device)
    train(before, range(1, 4))
    saved = {name: tensor.clone() for name, tensor in before.state().items()}
    after = engine_of(engine, settings, device=device)
    for name, tensor in after.state().items():
        tensor.copy_(saved[name])
    train(after, range(4, 7))
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, after.state()[name]), name


@pytest.mark.parametrize(("engine", "kind", "device"), ENGINES)
def test_a_look_up_alone_changes_nothing(engine, kind, device):
    tables = engine_of(engine, settings_of(kind), device=device)
    tables.set_lr_and_step(0.05, 1)
    kjt = jagged(1).to(device)
    tables(kjt).sum().backward()
    before = {name: tensor.clone() for name, tensor in tables.state().items()}
    with torch.no_grad():
        evaluated = tables(kjt)
    with torch.inference_mode():
        assert torch.equal(evaluated, tables(kjt))
    assert not evaluated.requires_grad
    assert tables(kjt).requires_grad  # and its backward never runs
    assert torch.equal(evaluated, tables(kjt))
    for name, tensor in tables.state().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(("engine", "device"), LOOK_UPS)
def test_empty_bags_give_zeros_and_an_empty_batch_moves_nothing(engine, device):
    tables = engine_of(engine, settings_of("adagrad"), device=device)
    before = {name: tensor.clone() for name, tensor in tables.state().items()}
    lengths = torch.zeros(len(FEATURES) * 3, dtype=torch.int64)
    empty = KeyedJaggedTensor(list(FEATURES), torch.empty(0, dtype=torch.int64), lengths=lengths)
    tables.set_lr_and_step(0.05, 1)
    pooled = tables(empty.to(device))
    assert torch.equal(pooled, torch.zeros(3, 28, device=device))
    pooled.sum().backward()
    for name, tensor in tables.state().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("engine", [FbgemmTables, CpuTables])
@pytest.mark.parametrize("bad", [5, -1])
def test_an_id_outside_its_table_is_refused(engine, bad):
    tables = engine_of(engine, settings_of("adagrad"))
    lengths = torch.tensor([0, 1, 0, 0])  # of feature "a", whose table has 5 rows
    with pytest.raises(RuntimeError, match="out of bounds"):
        tables(KeyedJaggedTensor(list(FEATURES), torch.tensor([bad]), lengths=lengths))


@pytest.mark.parametrize(("engine", "device"), LOOK_UPS[1:])
def test_rows_outside_the_batch_never_move_and_zero_gradients_count(engine, device):
    """Adam as FBGEMM's CUDA kernel does it: the moments of an absent row do not decay."""
    specs, features = (TableSpec("t", 3, 4, ("f",)),), ("f",)
    tables = engine_of(engine, SparseSettings("adam", 0.1), specs, features, device)
    weight = tables.state()["t/weight"]
    start = weight.clone()
    one = KeyedJaggedTensor(["f"], torch.tensor([1]), lengths=torch.tensor([1])).to(device)
    tables.set_lr_and_step(0.1, 1)
    tables(one).sum().backward()
    assert torch.equal(weight[[0, 2]], start[[0, 2]])
    torch.testing.assert_close(weight[1], start[1] - 0.1)
    tables.set_lr_and_step(0.1, 2)
    (tables(one) * 0).sum().backward()
    average, moved = tables.state()["t/exp_avg"][1], weight[1] - start[1]
    torch.testing.assert_close(average.cpu(), torch.full((4,), 0.1 * 0.9))
    torch.testing.assert_close(
        moved.cpu(),
        torch.full((4,), -0.1 - 0.1 * (0.09 / 0.19) / math.sqrt(0.000999 / 0.001999)),
        rtol=tolerance(device, 1.3e-6, 1e-4),
        atol=1e-5,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["lars_sgd", "lamb", "partial_rowwise_lamb"])
def test_a_row_without_gradient_stays_finite(kind, device):
    tables = build_tables(SPECS, FEATURES, SparseSettings(kind, 0.1), seed=0, device=device)
    before = {name: tensor.clone() for name, tensor in tables.state().items()}
    tables.set_lr_and_step(0.1, 1)
    (tables(jagged(1).to(device)) * 0).sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tables.state().items())
    tables.set_lr_and_step(0.1, 2)
    tables(jagged(1).to(device)).square().sum().backward()
    after = tables.state()
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert not torch.equal(after["shared/weight"], before["shared/weight"])


def test_tables_step_with_the_rate_of_their_look_up():
    for engine in (FbgemmTables, CpuTables):
        tables = engine_of(engine, settings_of("sgd"))
        weight = tables.state()["a/weight"]
        start = weight.clone()
        tables.set_lr_and_step(0.5, 1)
        kjt = KeyedJaggedTensor(
            list(FEATURES), torch.tensor([2]), lengths=torch.tensor([0, 1, 0, 0])
        )
        pooled = tables(kjt)
        tables.set_lr_and_step(0.25, 2)
        pooled.sum().backward()
        assert torch.equal(weight[2], start[2] - 0.5)


def test_every_look_up_of_an_update_has_its_number():
    """FBGEMM's modules on CUDA count look-ups for Adam's bias correction; here one only counts."""
    seen = []

    class Counting:
        def __init__(self) -> None:
            self.iter_cpu = torch.zeros(1, dtype=torch.int64)
            self.iter = torch.zeros(1, dtype=torch.int64)
            self.learning_rate_tensor = torch.zeros(())

        def __call__(self, *args, **named) -> Tensor:
            self.iter_cpu.add_(1), self.iter.add_(1)
            seen.append((int(self.iter_cpu), int(self.iter), float(self.learning_rate_tensor)))
            return torch.zeros(5, 28)

    tables = engine_of(FbgemmTables, settings_of("sgd"))
    tables._tbe, tables._counts_steps = [Counting()], True
    for step in (1, 2, 7):
        tables.set_lr_and_step(0.5 / step, step)
        for _ in range(3):
            tables(jagged(step))
    assert seen == [(n, n, pytest.approx(0.5 / n)) for n in (1, 2, 7) for _ in range(3)]


def test_the_dense_optimizer_cannot_see_the_tables():
    for kind in ("sgd", "adam"):
        tables = build_tables(SPECS, FEATURES, settings_of(kind), seed=0, device=CPU)
        assert not list(tables.parameters())
        assert not tables.state_dict()


@pytest.mark.parametrize(("engine", "kind"), ON_CPU)
def test_one_and_two_threads_agree_bit_for_bit(engine, kind):
    features = tuple("abcdef")
    specs = tuple(TableSpec(f, 4000, 12, (f,)) for f in features)

    def train(num_threads: int, *, rows_apart: int = 0) -> dict[str, Tensor]:
        torch.set_num_threads(num_threads)
        tables = engine_of(engine, settings_of(kind), specs, features)
        if rows_apart:
            tables.use_threads(RowThreads([], rows_apart).run_all, rows_apart)
        torch.manual_seed(5)
        for step in (1, 2):
            lengths = torch.randint(0, 9, (len(features) * 600,))
            ids = (torch.rand(int(lengths.sum())) ** 3 * 4000).long()
            tables.set_lr_and_step(0.05, step)
            pooled = tables(KeyedJaggedTensor(list(features), ids, lengths=lengths))
            pooled.backward(torch.randn(pooled.shape))
        return tables.state()

    first, again, two = train(1), train(1), train(2)
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name]), name
        assert torch.equal(tensor, two[name]), name
    if engine is CpuTables:  # whose rows are updated by several threads
        apart = train(1, rows_apart=3)
        assert all(torch.equal(tensor, apart[name]) for name, tensor in first.items())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_parts", [2, 3, 9])
@pytest.mark.parametrize("kind", sorted(STATE_NAMES))
def test_rows_updated_in_parts_have_the_bits_of_all_at_once(kind, num_parts, weighted, monkeypatch):
    features = ("a", "b", "c")
    specs = [TableSpec(n, r, d, (n,)) for n, r, d in (("a", 900, 4), ("b", 77, 20), ("c", 400, 4))]
    parts, whole = (engine_of(CpuTables, settings_of(kind), specs, features) for _ in range(2))
    parts.use_threads(run_one_by_one, num_parts)
    for tables, chunk_weights in ((whole, 524_288), (parts, 800)):
        monkeypatch.setattr("runner.embeddings.cpu_tables._CHUNK_WEIGHTS", chunk_weights)
        for step in (1, 2, 3):
            rng = torch.Generator().manual_seed(step)
            lengths = torch.randint(0, 5, (3 * 500,), generator=rng)
            num_ids = lengths.view(3, 500).sum(1).tolist()
            ids = [
                torch.randint(0, r, (n,), generator=rng) for r, n in zip((900, 77, 400), num_ids)
            ]
            weights = torch.rand(sum(num_ids), generator=rng) if weighted else None
            tables.set_lr_and_step(0.05, step)
            pooled = tables(KeyedJaggedTensor(list(features), torch.cat(ids), weights, lengths))
            pooled.backward(torch.randn(pooled.shape, generator=rng))
    for name, tensor in parts.state().items():
        assert torch.equal(tensor, whole.state()[name]), name


@pytest.mark.parametrize("differ", ["", "ids", "bags", "weights"])
def test_tables_with_equal_ids_are_sorted_once_with_the_same_bits(differ, monkeypatch):
    features = ("a", "b", "a1", "b1")  # the last two are of other tables, for a first-order term
    specs = [TableSpec(name, 5, 8 if len(name) == 1 else 4, (name,)) for name in features]
    once, apart = (engine_of(CpuTables, settings_of("adam"), specs, features) for _ in range(2))
    lengths, values = torch.tensor([2, 0, 1, 3, 1, 1]), torch.tensor([4, 1, 4, 0, 2, 2, 3, 1])
    of_first_order = values.flip(0) if differ == "ids" else values
    bags = lengths.flip(0) if differ == "bags" else lengths
    kjt = KeyedJaggedTensor(
        list(features),
        torch.cat([values, of_first_order]),
        weights=torch.rand(16) if differ == "weights" else None,
        lengths=torch.cat([lengths, bags]),
    )
    sorts = []
    monkeypatch.setattr(
        "runner.embeddings.cpu_tables.sort_ids",
        lambda *a, **k: sorts.append(1) or sort_ids(*a, **k),
    )
    for tables in (once, apart):
        for step in (1, 2):
            tables.set_lr_and_step(0.05, step)
            pooled = tables(kjt)
            pooled.backward(pooled.detach().cos())
        monkeypatch.setattr(BagNumbers, "have_equal_ids", lambda *_: False)
    assert len(sorts) == 2 * ((2 if differ else 1) + 2)
    for name, tensor in once.state().items():
        assert torch.equal(tensor, apart.state()[name]), name


@pytest.mark.parametrize(
    ("ids_of_row", "num_parts", "expected"),
    [
        ([1] * 1000, 1, [1000]),
        ([1] * 1000, 2, [512, 488]),
        ([1] * 1000, 4, [256, 256, 256, 232]),
        ([14] * 128 + [1] * 512, 2, [128, 512]),  # an id costs half of a row
        ([1] * 100, 4, [64, 36]),
        ([1] * 63, 4, [63]),
        ([9], 2, [1]),
    ],
)
def test_parts_have_rows_side_by_side_with_about_as_much_work(ids_of_row, num_parts, expected):
    starts_U = torch.tensor([0, *ids_of_row]).cumsum(0)[:-1]
    ids = SortedIds(torch.arange(len(ids_of_row)), starts_U, torch.zeros(sum(ids_of_row)), None)
    parts = ids.split(num_parts)
    assert [part.stop - part.start for part in parts] == expected
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == len(ids_of_row)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [4, 8, 12, 16, 64, 200])
def test_row_wise_adagrad_has_the_bits_of_fbgemm_where_no_features_share_a_table(dim, weighted):
    specs = tuple(TableSpec(name, 50, dim, (name,)) for name in FEATURES)
    settings = SparseSettings("rowwise_adagrad", 0.0123)
    ours, theirs = (
        engine_of(engine, settings, specs, FEATURES).train() for engine in (CpuTables, FbgemmTables)
    )
    for step in range(1, 6):
        kjt = jagged(step, batch_size=100, weighted=weighted)
        for tables in (ours, theirs):
            tables.set_lr_and_step(0.0123 / step, step)
            pooled = tables(kjt)
            torch.manual_seed(step)
            pooled.backward(torch.randn(pooled.shape) * 10.0**-step)
    for name, tensor in theirs.state().items():
        assert torch.equal(tensor, ours.state()[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9,), (9, 3)])
def test_rows_are_taken_and_put_as_torch_does_it(dtype, shape):
    rows_U = torch.tensor([7, 0, 3])
    ours = torch.randn(shape).to(dtype)
    theirs = ours.clone()
    taken = take_rows(ours, rows_U)
    assert torch.equal(taken, theirs.index_select(0, rows_U))
    put_rows(ours, rows_U, -taken)
    assert torch.equal(ours, theirs.index_copy_(0, rows_U, -taken))


@pytest.mark.parametrize("device", DEVICES)
def test_initial_weights_depend_on_seed_and_table_alone(device):
    specs = (TableSpec("big", 70_000, 4, ("x",)), TableSpec("small", 10, 8, ("y",)))
    one = build_tables(specs, ("x", "y"), settings_of("adam"), seed=3, device=CPU).state()
    other = build_tables(specs[::-1], ("y", "x"), settings_of("sgd"), seed=3, device=device).state()
    for name in ("big", "small"):
        assert torch.equal(one[f"{name}/weight"], other[f"{name}/weight"].cpu())
    another = build_tables(specs, ("x", "y"), settings_of("adam"), seed=4, device=CPU).state()
    assert not torch.equal(one["big/weight"], another["big/weight"])
    bound = 70_000**-0.5
    assert one["big/weight"].abs().max() <= bound
    assert one["big/weight"].std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_a_model_without_tables_is_refused():
    with pytest.raises(ConfigError, match="no sparse feature"):
        build_tables([], [], settings_of("sgd"), seed=0, device=CPU)
