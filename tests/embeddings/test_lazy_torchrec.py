"""What a training imports, and that what it leaves out is there for whoever asks for it."""

from __future__ import annotations

import json

from tests.conftest import python

HEAVY = ["torch._dynamo", "torch._inductor", "torchrec.distributed", "torchrec.quant", "tensordict"]
TRAIN = f"""
import json, sys
sys.argv = ["runner", "trainer.max_steps=2", "report=false", "trainer.yardstick=false",
            "dataset.rows={{train: 512, validation: 64, test: 64}}", "hydra.run.dir=run"]
sys.orig_argv = sys.argv
from runner.__main__ import main
code = main()
trained = [name for name in {HEAVY} if name in sys.modules]

import torchrec
hasattr(torchrec, "__wrapped__")  # as inspect.unwrap asks of every module
asked = [name for name in {HEAVY} if name in sys.modules]
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
names = [torchrec.KeyedJaggedTensor is KeyedJaggedTensor]
from torchrec import *  # asks for __all__
names.append(EmbeddingBagCollection.__module__)
whole = [name for name in {HEAVY} if name in sys.modules]

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
print(json.dumps([code, trained, asked, names, whole, weight.tolist(), missing]))
"""


def test_a_training_imports_neither_the_compiler_nor_all_of_torchrec(tmp_path):
    done = python("-c", TRAIN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    code, trained, asked, names, whole, weight, missing = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    assert trained == asked == []
    assert names == [True, "torchrec.modules.embedding_modules"]
    assert whole == HEAVY
    assert weight == [0.0, 0.0]
    assert missing == "module 'torchrec' has no attribute 'no_such_name'"
