"""What a training imports, and that what it leaves out is there for whoever asks for it."""

from __future__ import annotations

import json

import pytest

from tests.conftest import python

HEAVY = ["torchrec", "torchrec.distributed", "tensordict", "torch._dynamo", "torch._inductor"]
TRAIN = f"""
import json, sys
sys.argv = ["runner", "trainer.max_steps=2", "report=false", "trainer.yardstick=false",
            "dataset.rows={{train: 512, validation: 64, test: 64}}", "hydra.run.dir=run"]
sys.orig_argv = sys.argv
from runner.__main__ import main
code = main()
trained = [name for name in {[*HEAVY, "scipy"]} if name in sys.modules]

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
import torchrec
names = [torchrec.KeyedJaggedTensor is KeyedJaggedTensor]
from torchrec import *
names.append(EmbeddingBagCollection.__module__)
whole = [name for name in {HEAVY} if name in sys.modules]

assert torchrec.modules is sys.modules["torchrec.modules"]

import torch, torch._dynamo
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=1.0)
optimizer.zero_grad()
optimizer.add_param_group({{"params": [torch.nn.Parameter(torch.ones(1))]}})
weight.grad = torch.ones(2)
optimizer.step()
try:
    torchrec.no_such_name
except AttributeError as error:
    missing = str(error)
print(json.dumps([code, trained, names, whole, weight.tolist(), missing]))
"""


@pytest.mark.long
def test_a_training_imports_neither_the_compiler_nor_all_of_torchrec(tmp_path):
    done = python("-c", TRAIN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    code, trained, names, whole, weight, missing = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    assert trained == []
    assert names == [True, "torchrec.modules.embedding_modules"]
    assert whole == HEAVY
    assert weight == [0.0, 0.0]
    assert missing == "module 'torchrec' has no attribute 'no_such_name'"


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        "import runner.embeddings.torchrec_tables",
        "import runner.training.update.sparse_dist_pipeline",
        "import torchrec; assert torchrec.optim.keyed and torchrec.EmbeddingBagCollection",
        "from torchrec.distributed.planner import EmbeddingShardingPlanner",
        "from torchrec import quant, KeyedJaggedTensor",
        "import torchrec.sparse.jagged_tensor; torchrec.sparse.jagged_tensor.JaggedTensor",
        "import pickle, torch; kjt = runner.batch.KeyedJaggedTensor(['a'], torch.ones(1), "
        "torch.ones(1).int()); pickle.loads(pickle.dumps(kjt))",
        "import torchrec, inspect; assert 'EmbeddingBagCollection' in inspect.getsource(torchrec)",
        "import torchrec.models.dlrm",
        "from torchrec.datasets.utils import Batch",
    ],
)
def test_every_way_to_import_torchrec_works_after_its_tensors_alone(words):
    code = f'import runner.batch, sys; assert "torchrec" not in sys.modules\n{words}'
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_batches_alone_have_the_operators_of_jagged_tensors():
    script = """
import torch
from runner.batch import KeyedJaggedTensor
ids = KeyedJaggedTensor(["a"], torch.tensor([4, 5, 6]), lengths=torch.tensor([1, 2]))
print(ids.offsets().tolist(), ids.to_dict()["a"].values().tolist())
"""
    done = python("-c", script)
    assert done.stdout.splitlines()[:1] == ["[0, 1, 3] [4, 5, 6]"], done.stderr
