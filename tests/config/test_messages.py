"""Messages about mistakes in a command line, before anything is written."""

import os
import re

import pytest

from runner.config.compose import compose
from runner.distributed.world_size import launched_world_size, may_restart
from runner.errors import ConfigError
from tests.fake_job import fake_command


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    found = fake_command(monkeypatch, capsys, tmp_path)
    yield found
    assert [p.name for p in tmp_path.iterdir()] == [], "a mistake touched the disk"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optimizer=adm"], ["optimizer=adm: no such option", "nearest: 'adam'"]),
        (["lr=0.1"], ["lr=0.1: there is no key 'lr'", "'optimizer.dense.lr'"]),
        (["trainer.max_step=5"], ["nearest: 'trainer.max_steps'"]),
        (["checkpoint.every=5"], ["nearest: 'checkpoint.save_every';"]),  # not delivery.every
        (["batchsize=8"], ["nearest: 'trainer.batch_size'"]),
        (["precision=bf16"], ["nearest: 'trainer.amp', 'trainer.amp_dtype';"]),
        (["+trainer.gpus=2"], ["nearest: 'trainer.num_processes', 'trainer.device';"]),
        (["accelerator=gpu"], ["nearest: 'trainer.device';"]),
        (["checkpoint.monitor.mode=max"], ["nearest: 'checkpoint.monitor.direction';"]),
        (["trainer.early_stop.mode=max"], ["nearest: 'trainer.early_stop.direction';"]),
        (["trainer.gradient_clip_val=10"], ["nearest: 'trainer.clip.global_norm';"]),
        (["max_epochs=2"], ["nearest: 'trainer.max_epochs';"]),
        (["patience=2"], ["nearest: 'trainer.early_stop.patience',"]),
        (["modle=dlrm"], ["nearest: 'model'"]),
        (["experiment=bars"], ["nearest: 'experiments'; `python -m runner explain experiments`"]),
        (["+experiment=bars"], ["nearest: 'experiments'; `python -m runner explain experiments`"]),
        (["recipes=bars"], ["nearest: 'recipe';"]),
        (["tracker.project=mine"], ["nearest: 'tracker.wandb.project' of tracker=wandb;"]),
        (["callbacks.limit=6h"], ["nearest: 'callbacks.time_limit.limit' of callbacks=time_li"]),
        (["tracker.mine._target_=own.Tracker"], ["own has a +: +tracker.mine._target_=own.Trac"]),
        (["model=mpl"], ["nearest: 'mlp'"]),  # letters swapped are one mistake, as in ple two
        (["trainer.batch_size=abc"], ["expected whole number or auto, got text 'abc'"]),
        (["trainer.batch_size=1.5"], ["expected whole number or auto, got number 1.5"]),
        (["trainer.batch_size=10k"], ["got text '10k'; nearest: 10000"]),
        (["trainer.batch_size=1e4"], ["got number 10000.0; nearest: 10000"]),
        (["trainer.accumulate=1.5M"], ["got text '1.5M'; nearest: 1500000"]),
        (["trainer.max_steps='4_096'"], ["got text '4_096'; nearest: 4096"]),
        (["trainer.eval_every=2k"], ["or null for never; nearest: 2000"]),
        (["model.net.embedding_dim=1e2"], ["must be a whole number from 1, or auto; nearest: 100"]),
        (["scheduler.warmup=1k"], ['below 1, or "2ep"; nearest: 1000']),
        (["optimizer.dense.lr='1e-3'"], ["got text '1e-3'; nearest: 0.001"]),
        (["trainer.amp=1"], ["trainer.amp=1: expected true or false"]),
        (["model.net.embedding_dim=wide"], ["embedding_dim=wide: must be a whole number from 1,"]),
        (["model.net.top=[64,wide]"], ["model.net.top", "expected list of whole number"]),
        (["optimizer.dense.lr=fast"], ["optimizer.dense.lr=fast: expected number"]),
        (["seed=-1"], ["seed=-1: must be at least 0 and below 2**63"]),
        (["seed=null"], ["seed=null: expected whole number, got null"]),
        (["trainer.batch_size=0"], ["trainer.batch_size=0: must be at least 1"]),
        (["optimizer=[adam,sgd]"], ["optimizer takes one option", "-m optimizer=adam,sgd runs"]),
        (["model=[dcn,dlrm]"], ["model takes one option", "-m model=dcn,dlrm runs"]),
        (["checkpoint=best"], ["checkpoint=best: no such option", "checkpoint.step=best"]),
        (["trainer=cuda"], ["perhaps trainer.device=cuda"]),
        (["trainer=5"], ["a value goes to one of its keys"]),
        (["checkpoint.monitor=max"], ["a group of keys", "checkpoint.monitor.direction=max"]),
        (["loop=debug", "trainer.num_processes=2"], ["works in one process"]),
        (["trainer.num_processes=100000"], ["num_processes=100000: this machine has", "at most"]),
        (["+hydra.anything=1"], ["+hydra.anything=1: has no effect; of Hydra's keys, run.dir"]),
        (["model.net.bottom=[0]"], ["model.net.bottom[0]=0: must be at least 1"]),
        (["model.net.bottom=[]"], ["model.net.bottom=[]: needs at least 1 item"]),
        (["model.net.dropout=1.5"], ["model.net.dropout=1.5: must be at least 0 and below 1"]),
        (["optimizer.dense.betas=[0.9]"], ["optimizer.dense.betas=[0.9]: needs 2 items"]),
        (["optimizer.dense.eps=-1"], ["optimizer.dense.eps=-1: must be above 0"]),
        (["dataset.window_rows=0", "dataset.workers=-1", "dataset.prefetch=-1"],
         ["3 mistakes", "dataset.window_rows=0", "dataset.workers=-1", "dataset.prefetch=-1"]),
        (["trainer.accumulate=100000000000"], ["must be at least 1 and at most 1000000"]),
        (["trainer.rank_timeout_s=100000000000"], ["must be at least 1 and at most 31536000"]),
        (["trainer.early_stop.threshold=nan"], ["threshold=nan: must be a finite number"]),
        (["sharding.device_memory_gb=nan"], ["device_memory_gb=nan: must be above 0"]),
        (["callbacks=memory", "callbacks.memory.every=30min"],
         ["callbacks.memory.every=30min: must not be a time: all ranks measure"]),
        (["optimizer.parts=[{pattern: x, dense: {lr: -1, momentm: 0.5}}]"],
         ["parts[0].dense.lr=-1: must not be negative", "momentm is not a setting of Adam"]),
        (["model=sasrec"], ["model.net: SASRec: needs a sequence of ids; the dataset has none"]),
        (["model=two_tower", "model.net.item=[C99]"], ["item=C99", "nearest: 'C9'"]),
        (["model=din"], ["model.net: DIN: needs a sequence of ids"]),
        (["model/loss=mse", "metrics.slice_by=C99"],
         ["2 mistakes", "'label' is binary", "metrics.slice_by=C99: no group column"]),
        (["scheduler=piecewise", "scheduler.at=[50,40]", "trainer.max_steps=90"],
         ["scheduler.at=[50, 40]: must rise"]),
        (["scheduler.warmup=nan"], ["scheduler.warmup=nan: must be updates"]),
        (["scheduler.warmup=infep"], ["scheduler.warmup='infep': must be updates"]),
        (["model.net=3"], ["model.net is a group of keys"]),
        (["trainer.max_steps=5", "trainer.max_epochs=2"],
         ["error: trainer.max_steps=5 and trainer.max_epochs=2: give one of them"]),
        (["trainer.max_epochs=null"], ["set trainer.max_steps or trainer.max_epochs, which say"]),
        (["checkpoint.monitor.direction=up"], ["one of max, min"]),
        (["checkpoint.monitor.direction=null"], ["direction=null: expected text, got null"]),
        (["checkpoint.monitor.metric=null"], ["metric=null: expected text, got null"]),
        (["trainer.ema.warmup=null"], ["trainer.ema.warmup=null: expected true or false"]),
        (["trainer.profile.updates=null"], ["expected whole number, got null"]),
        (["loop=debug", "trainer.profile.updates=3"],
         ["trainer.profile.updates=3: the loop debug records no updates", "loop.summary=true"]),
        (["loop=tune_lr", "trainer.profile.updates=3"], ["loop tune_lr", "loop.then=train"]),
        (["checkpoint.monitor.metric=auc"], ["write split/metric, such as validation/auc"]),
        (["checkpoint.monitor.metric=valid/auc"], ["nearest: 'validation'"]),
        (["trainer.eval_every=30min"], ["must not be a time: this key changes the result"]),
        (["trainer.log_every=often"],
         ["trainer.log_every=often: not an interval; write a number of updates, '5000ex', '2ep', "
          "or '30min'\n"]),  # and not null, which this key does not take
        (["checkpoint.save_every=often"], ["'5000ex', '2ep', '30min', or null for never"]),
        (["trainer.eval_every=0"], ["trainer.eval_every=0: an interval is at least 1; null means"]),
        (["trainer.amp=true", "trainer.amp_dtype=fp16", "trainer.device=cpu"], ["needs a CUDA"]),
        (["trainer.pipeline=sparsedist"], ["one of auto, none, base", "nearest: 'sparse_dist'"]),
        (["trainer.pipeline=base", "trainer.device=cpu"], ["nothing to copy", "dataset.workers"]),
        (["trainer.pipeline=sparse_dist"], ["one process has all tables"]),
        (["loop=debug", "trainer.pipeline=base"], ["loop debug takes no batch ahead"]),
        (["trainer.device=gpu"], ["trainer.device=gpu: must be one of auto, cpu, cuda"]),
        (["scheduler.kind=cosin"], ["nearest: 'cosine'"]),
        (["scheduler.warmup=50", "trainer.max_steps=10"], ["longer than the run"]),
        (["scheduler.warmup=2ep", "trainer.max_steps=10", "trainer.log_every=0"],
         ["error: trainer.log_every=0"]),  # an epoch's length is not known yet
        (["scheduler.warmup=1e999", "trainer.max_steps=10"], ["error: scheduler.warmup=inf: must"]),
        (["optimizer.sparse.kind=adm"], ["must be one of sgd", "nearest: 'adam'"]),
        (["optimizer=sgd", "optimizer.sparse.momentum=0.9"], ["would ignore it"]),
        (["+optimizer.sparse.weight_decay=0.1"], ["ignore it on CPU"]),
        (["optimizer.dense._target_=torch.nn.Linear"], ["not an optimizer"]),
        (["optimizer.dense._target_=torch.optim.SparseAdam"], ["takes sparse gradients only"]),
        (["+optimizer.dense.differentiable=true"], ["gradients through the optimizer's update"]),
        (["trainer.tf32=true", "trainer.device=cpu"], ["trainer.tf32=true: is a setting for CUDA"]),
        (["loop=eval"], ["needs what to evaluate: run=DIR"]),
        (["run=somewhere"], ["loop=eval run=somewhere", "resume somewhere"]),
        (["checkpoint.path=somewhere"], ["is what loop=eval evaluates"]),
        (["checkpoint.step=last", "checkpoint.init_from=."],
         ["checkpoint.step=last: is for evaluations of a run, and a start takes its best step; "
          "checkpoint.init_from=", "/checkpoints/step-N takes another one"]),
        (["trainer.early_stop.threshold=0.7", "trainer.early_stop.min_delta=0.1"],
         ["trainer.early_stop.min_delta=0.1: does nothing without trainer.early_stop.patience"]),
        (["callbacks=activations", "callbacks.activations.statistics=[]"],
         ["callbacks.activations.statistics=[]: needs at least 1 item"]),
        (["loop=eval", "run=nowhere"], ["nowhere: no such run directory"]),
        (["loop=eval", r"run='/\${x}/y'"], ["/${x}/y: no such run directory"]),
        (["loop=eval", "checkpoint.path=nowhere"], ["checkpoint.path=nowhere: no such folder"]),
        (["checkpoint.init_from=nowhere"], ["nowhere: no such folder"]),
        *((["callbacks=time_limit", f"callbacks.time_limit.limit={value}", "seed=-1"],
           ["2 mistakes", f"limit={value}: must be a time, such as '90s', '30min' or '6h'"])
          for value in ("abc", "5", "1.5", "10ep", "null", "0s")),
        (["callbacks=time_limit", "callbacks.time_limit.margin=5"],
         ["margin=5: must be a time, such as '90s', '30min' or '6h'"]),
        (["loop=online", "trainer.max_epochs=auto", "seed=-1"],
         ["2 mistakes", "trainer.max_epochs=auto: loop=online learns from each row once: "
          "trainer.max_epochs=1, or trainer.max_steps=N"]),
        *((["loop=online", *dataset, "trainer.batch_size=auto", "scheduler.warmup=auto", "seed=-1"],
           ["3 mistakes", *(f"{key}=auto: follows from the number of train rows, which a stream and"
                            for key in ("trainer.batch_size", "scheduler.warmup"))])
          for dataset in (["dataset=folder"], ["dataset._target_=my.Clicks", "--allow", "my"])),
        (["dataset=kafka", "dataset.rows.train=2000"],
         ["there is no key 'dataset.rows.train' here: it is a key of dataset=synthetic; "
          "`python -m runner explain dataset.rows.train dataset=synthetic` says"]),
        (["model.net.pair=true", "model=dlrm"],
         ["there is no key 'model.net.pair'; nearest: 'model.net.pairs' of model=wide_and_deep; "
          "`python -m runner explain model.net.pairs model=wide_and_deep` says"]),
        (["model.net.pair=true", "model=wide_and_deep"],
         ["nearest: 'model.net.pairs'; `python -m runner explain model.net.pairs` says"]),
        (["dataset.delimeter=x"], ["nearest: 'dataset.delimiter' of dataset=csv, tsv;"]),
        (["dataset.separater=x"], ["no key 'dataset.separater'; nearest: 'dataset.positive_rate'"]),
        (["optimizer.dense.eps=0"], ["optimizer.dense.eps=0: must be above 0"]),
        (["callbacks=time_limit", "callbacks.time_limit.limit=1s"],
         ["callbacks.time_limit.margin=1min: must be less than callbacks.time_limit.limit=1s"]),
        (["model/loss=jrc", "trainer.accumulate=2"],
         ["trainer.accumulate=2: JRC compares all rows", "set model.loss.within=micro_batch"]),
        (["model=two_tower", "trainer.num_processes=2"],
         ["trainer.num_processes=2: InBatchSoftmax compares", "each micro-batch of each rank"]),
        (["model=two_tower", "model/loss=bpr", "trainer.accumulate=2"], ["BPR compares all rows"]),
        (["model/loss=jrc", "trainer.batch_on_plateau.patience=2"], ["plateau.patience=2: JRC"]),
        (
            ["model/loss=jrc", "trainer.eval_batch_size=8192"],
            ["eval_batch_size=8192: the loss compares the rows", "trainer.batch_size=4096"],
        ),
        (["model/loss=jrc", "model.loss.within=microbatch"], ["nearest: 'micro_batch'"]),
        (["model=sasrec", "model.loss.within=micro_batch"],
         ["has no effect, since SampledSoftmax", "model.net.in_batch=true"]),
        (["model.net.norm=bach"], ["norm=bach: must be one of batch, layer; nearest: 'batch'"]),
        (["model.net.activation=rely"], ["model.net.activation=rely", "nearest: 'relu'"]),
        (["model.net.init=xavier"], ["model.net.init=xavier", "nearest: 'xavier_"]),
        (["model.net.norm_place=5"], ["norm_place=5: expected text or null"]),
        (["model.net.norm_scope=rank"], ["norm_scope=rank: must be one of update, micro_batch"]),
        (["model.net.dropout=[0.1,x]"], ["expected number or list of number"]),
        (["model=sasrec", "model.net.norm=batch"], ["there is no key 'model.net.norm'"]),
        (["model.net.norm=batch", "trainer.batch_size=1"], ["one row has none"]),
        (["model.net.norm=batch", "model.net.norm_scope=micro_batch", "trainer.batch_size=1",
          "trainer.accumulate=8"], ["one row has none"]),
        (["model/loss=jrc", "model.loss.within=micro_batch", "trainer.accumulate=2",
          "model.net.norm=batch"], ["set model.net.norm_scope=micro_batch as well"]),
        (["optimizer=lbfgs", "trainer.clip.global_norm=1"],
         ["trainer.clip.global_norm=1: L-BFGS searches along", "clipping would change it"]),
        (["optimizer=lbfgs", "optimizer.parts=[]"], ["freeze them with", "'^tables', frozen"]),
        (["optimizer=lbfgs", "optimizer.parts=[{pattern: '^top', dense: {lr: 0.1}}]"],
         ["optimizer.parts[0]: L-BFGS moves", "parts may only freeze"]),
        (["optimizer=lbfgs", "optimizer.parts=[{patern: x}]"], ["nearest: 'pattern'"]),
        (["checkpoint.init_from=.", "trainer.max_steps=5"], ["holds no whole checkpoint"]),
        (["+nonsense=1"], ["there is no key 'nonsense'"]),
        (["+trainer.lr=1"], ["there is no key 'trainer.lr'"]),
        (["recipe=bars", "+recipe.anything=1"], ["recipe.anything=1: there is no key 'recipe.a"]),
        (["search=quick", "search.each_job.scheduler={a:1}"],
         ["search.each_job.scheduler.a is not a setting of constant; known: kind, warmup"]),
        (["search=quick", "search.each_job.optimizer=adagard"],
         ["search.each_job.optimizer=adagard: no such option", "nearest: 'adagrad'"]),
        (["model.net.embedding_dim={user: 8}"], ["embedding_dim.user: fits no table"]),
        (["model=wide_and_deep", "model.net.pairs=fitted"],
         ["model.net.pairs=fitted: checkpoint.init_linear=true fits them, and is not set"]),
        (["model=wide_and_deep", "model.net.pairs=yes"],
         ["model.net.pairs=yes: must be one of true, false, fitted"]),
        (["model=wide_and_deep", "model.net.pairs=true", "model.net.embedding_dim=auto"],
         ["model.net.pairs=true: multiplies vectors of all features", "tables of one width"]),
        (["~trainer.batch_size"], ["every job has this key; trainer.batch_size=VALUE gives it"]),
        (["~task._target_", "loop=tune_lr", "~loop.high"],
         ["~task._target_: every job has this key", "~loop.high: every job"]),
        (["~model"], ["model.net: is missing", "ls model"]),
        (["model=null", "seed=-1"], ["model=null: a group takes one of its options\n"]),
        (["callbacks=null"], ["a group takes one of its options; ~callbacks leaves it out"]),
        (["~seed", "~run", "~report"], ["3 mistakes", "~seed: every job has this key"]),
        (["~optimizer=3", "~model=[dcn]"],
         ["2 mistakes", "~optimizer=3: ~optimizer leaves the group out", "~model=[dcn]: ~model"]),
        (["+optimizer=adam", "++dataset=csv", "model@net=dcn", "seed=-1"],
         ["4 mistakes", "+optimizer=adam: an option is chosen without a +: optimizer=adam",
          "++dataset=csv: an option", "model@net=dcn: a group has one place; model=dcn"]),
        (["hydra.job.chdir=true", "hydra/job_logging=default", "~hydra.run.dir", "seed=-1"],
         ["4 mistakes", "hydra.job.chdir=true: has no effect; of Hydra's keys, run.dir, sweep",
          "hydra/job_logging=default: has no effect", "~hydra.run.dir: has no effect"]),
        (["model.net.top[0]=3", "trainer..amp=true", "größe=3", "=3", "~=3"],
         ["5 mistakes", "'model.net.top[0]' is no key: a key is names with dots",
          "'trainer..amp' is no key", "'größe' is no key", "4. =3: names no key", "5. ~=3: names"]),
        (["SEED=1", "optimizer=ADAM", "Trainer.Max_Steps=3"],
         ["3 mistakes", "nearest: 'seed'", "nearest: 'adam'", "nearest: 'trainer.max_steps'"]),
        (["model.net._target_=__main__.M"],
         ["what a notebook or a script defines has no name", "mine.py, and name mine.M"]),
        (["model.net={}", "search=quick", "search.space={}"],
         ["2 mistakes", "model.net={}: changes nothing, as given keys join those there",
          "search.space={}: changes nothing"]),
        (["optimizer.parts={pattern: bias, frozen: true}"],
         ["optimizer.parts is a list, which is given as a whole: optimizer.parts=[...]"]),
        (["optimizer.parts.lr=3", "metrics.eval.auc=true", "~model.net.top.0", "model.net.top.7=3"],
         ["4 mistakes", "optimizer.parts is a list, which", "metrics.eval is a list, which",
          "~model.net.top.0: model.net.top is a list", "model.net.top.7=3: model.net.top is a"]),
        (["hydra.launcherx=1", "seed=-1"], ["2 mistakes", "hydra.launcherx=1: has no effect"]),
        (["hydra.mode=MULTI", "hydra.run.dir=[a,b]", "hydra.sweep.dir=", "hydra.searchpath=foo",
          "hydra.run={dir: x}", "seed=-1"],
         ["6 mistakes", "hydra.mode=MULTI: must be one of RUN, MULTIRUN; nearest: 'MULTIRUN'",
          "hydra.run.dir=['a', 'b']: expected text, a folder", "hydra.sweep.dir=: names no folder",
          "hydra.searchpath=foo: expected list of text", "given to a key: hydra.run.dir=DIR"]),
        (["hydra.searchpath=[file:///nowhere]"], ["no such folder: file:///nowhere"]),
        (["-M"], ["-M: no such flag; nearest: '-m'"]),
        (["help"], ["'help': no such verb; `python -m runner --help` does that"]),
        (["metrics.own={mcc: {_target_: a.B}}"],
         ["no key 'metrics.own.mcc' yet; a key", "'+metrics.own={mcc: {_target_: a.B}}'"]),
        (["trainer.max_steps.foo=3", "name.foo=3", "checkpoint.init_names.a=b"],
         ["3 mistakes", "no key 'trainer.max_steps.foo'; nearest: 'trainer.max_steps'",
          "no key 'name.foo'; nearest: 'name'", "one's own has a +: +checkpoint.init_names.a=b"]),
        (["callbacks.mine.every=3"], ["no key 'callbacks.mine.every' yet", ": +callbacks.mine.ev"]),
        (["callbacks=weights", "callbacks.weights.evry=3"], ["nearest: 'callbacks.weights.every'"]),
        (["tracker.wandb.project=x"], ["it is a key of tracker=wandb"]),
        (["name=5", "checkpoint.init_from=/"], ["2 mistakes", "name=5: expected text", "holds no"]),
        (["name=a/b"], ["name=a/b: becomes a part of a folder's name"]),
        (["seed=1,2"], ["seed=1,2: several values", "-m"]),
        (["trainer.batch_size=[1"], ["cannot be read"]),
        (["name=größe"], ["letters beyond a to z of a text are quoted", """'name="größe"'"""]),
        (["trainer.batch_size"], ["everything else is key=value"]),
        (["seed=1", "resume"], ["'resume': not key=value", "verbs"]),
        (["dataset@x=synthetic"], ["dataset"]),
        (["seed=${nowhere}"], ["seed=${nowhere}: cannot be resolved", "nowhere"]),
        (["model=sasrec", "model.net.item=${nope}", "metrics.eval=${nope}", "seed=-1"],
         ["3 mistakes", "model.net.item=${nope}: cannot be resolved", "metrics.eval=${nope}: cann",
          "seed=-1: must be at least 0"]),
        (["optimizer.dense._target_=${nope}"],
         ["error: optimizer.dense._target_=${nope}: cannot be resolved"]),
        (["hydra.run.dir=outputs/${modle.name}", "hydra.sweep.dir=${nope}/x", "seed=-1"],
         ["3 mistakes", "hydra.run.dir=outputs/${modle.name}: cannot be resolved",
          "hydra.sweep.dir=${nope}/x: cannot be resolved", "seed=-1: must be at least 0"]),
        (["hydra.run.dir=${nope}/x"], ["a folder of that name: 'hydra.run.dir=", r"\${nope}/x"]),
        (["hydra.run.dir='x${b'", "hydra.sweep.dir='${'"],
         ["2 mistakes", "hydra.run.dir=x${b: cannot be read: no viable alternative at input '${b'",
          "a folder of that name: 'hydra.run.dir=", r"x\${b", "hydra.sweep.dir=${: cannot be"]),
        (["trainer.max_steps=${nope}", "trainer.max_steps=0"], ["trainer.max_steps=0: must be"]),
        (["model.net.dropout=${nope}"], ["error: model.net.dropout=${nope}: cannot be resolved"]),
        (["name=${oc.env:NOT_SET_ANYWHERE}"], ["NOT_SET_ANYWHERE"]),
        (["seed=???"], ["seed: has no default and must be given"]),
        (["model.net._target_=os.system"], ["not in an allowed package", "--allow os"]),
        (["+task.hook._target_=builtins.eval"], ["task.hook._target_=builtins.eval"]),
        (["optimizer.schedules.dense=cosine", "optimizer.schedules.sparse=[1]"],
         ["optimizer.schedules.dense='cosine': must be a group of keys", "schedules.sparse=[1]"]),
        (["scheduler.kind=[1,2]", "optimizer.parts=[abc]"],
         ["scheduler.kind=[1, 2]: expected text", "optimizer.parts[0]"]),
        (["loop.final_splits=[test,tets]"],
         ["loop.final_splits[1]=tets: must be one of train, validation, test", "nearest: 'test'"]),
        (["loop.final_splits=[test,test]"], ["loop.final_splits=test: is listed twice"]),
        (["trainer.learning_rate=1"], ["nearest: 'optimizer.dense.lr', 'optimizer.sparse.lr'"]),
        (["dataset=csv", "dataset.schema=", "dataset.path=", "checkpoint.init_from=", "seed=-1"],
         ["4 mistakes", "dataset.schema=: names no file and no folder", "dataset.path=: names no",
          "checkpoint.init_from=. is the folder"]),
        (["loop=eval", "run="], ["run=: names no file and no folder; run=. is the folder that"]),
        (["metrics.eval=[auk]"], ["unknown metric 'auk'", "nearest: 'auc'"]),
        (["--alow=x"], ["--alow=x: no such flag", "--allow"]),
        (["--config-dir", "nowhere"], ["nowhere: no such folder"]),
        (["--config-name", "x"], ["--config-name"]),
        (["--dry-run"], ["--dry-run: lists the jobs of a sweep; add -m"]),
        (["--rerun", "changed"], ["--rerun: repeats jobs of a sweep; add -m"]),
        (["--resolve", "seed=1"], ["--resolve: says what --cfg prints; add --cfg job"]),
        (["train", "x"], ["'train': no such verb; `python -m runner [KEY=VALUE ...]` does that"]),
        (["compare", "a", "b"], ["`python -m runner report DIR ...` or `diff A B`"]),
        (["trainer.max_steps", "5"], ["a setting is one word: trainer.max_steps=5"]),
        (["model", "=", "dcn"], ["'model': no such verb", "a setting is one word: model=dcn"]),
        (["seed", "x=3"], ["'seed': no such verb", "a setting is one word: seed=VALUE"]),
        (["--model=dcn"], ["--model=dcn: no such flag; a setting is one word: model=dcn"]),
        (["seed=1", "--trainer.amp", "true"], ["a setting is one word: trainer.amp=true"]),
        (["-model", "dcn"], ["a setting is one word: model=dcn"]),
        (["reume", "x"], ["'reume': no such verb", "nearest: 'resume'"]),
        (["resume"], ["resume: name a run"]),
        (["resume", "nowhere"], ["nowhere: no such run directory"]),
        (["dataset=csv"], ["runner schema PATH --out schema.yaml` proposes one"]),
        (["ls", "optimiser"], ["no such group", "nearest: 'optimizer'"]),
        (["-m", "seed=range(1e10)"], ["lists 1e+10 values; a key of a sweep has at most 100,000"]),
        (["-m", "seed=1", "hydra.mode=FOO"], ["hydra.mode=FOO: must be one of RUN, MULTIRUN"]),
        (["-m", "seed=1,2", "seed=3"], ["seed=1,2: has no effect, seed=3 follows; a key of"]),
        (["-m", "seed=range(0)"], ["seed=range(0): a sweep over nothing"]),
        (
            ["-m", "seed=range(0,3000)", "run.name=range(0,3000)"],
            ["seed=range(0,3000) run.name=range(0,3000): 9,000,000 jobs; a grid has at most"],
        ),
    ],
)  # fmt: skip
@pytest.mark.parity("T18", "E5", "N4")
def test_a_mistake_is_told_with_key_value_rule_and_the_nearest_right_thing(command, words, said):
    message = command.refused(*words)
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["checkpoint.init_names={a: 3}", "checkpoint.init_optimizer=true",
          "checkpoint.init_average=true"],
         ["checkpoint.init_names: renames weights", "checkpoint.init_optimizer=true: takes the",
          "checkpoint.init_average=true: takes the", "init_names.a=3: needed is the name"]),
        (["checkpoint.init_tables={a: 3, b: {from: nowhere, tabel: x, table: 3}}",
          "checkpoint.init_linear=true", "trainer.num_processes=2"],
         ["init_from and init_tables give the start", "works on one rank", "init_tables.a=3: write",
          "b.tabel: there is no such key; nearest: 'table'", "b.table=3: needed is the name of a",
          "nowhere: no such folder"]),
        (["trainer.eval_splits=[]", "optimizer.sparse.every_row=3"],
         ["eval_splits=[]: needs a split: train", "eval_splits=[]: must hold validation",
          "optimizer.sparse.every_row=3: expected true or false"]),
        (["trainer.eval_splits=[train,train]"], ["eval_splits=train: is listed twice"]),
        (["loop=eval", "loop.follow=true", "loop.split=[train,test]"],
         ["loop.follow=true follows one split; start a process", "under way: run=DIR"]),
        (["loop=online", "dataset=parquet", "dataset.schema=s.yaml", "trainer.max_epochs=2",
          "trainer.early_stop.patience=2", "dataset.mix=true"],
         ["max_epochs=2: loop=online learns from each row once", "loop=online has none",
          "the order of the files: dataset.mix=false"]),
        (["dataset=folder", "dataset.path=x"], ["dataset=folder: is a stream", "loop=online"]),
        (["+metrics.own.a=3", "+metrics.own.b={_target_: torchmetrics.AUROC, tasks: []}",
          "~optimizer.dense._target_"],
         ["metrics.own.a: needs a _target_", "metrics.own.b.tasks=[]: a list of tasks",
          "optimizer.dense._target_: is missing; name a class of torch.optim"]),
        (["trainer.early_stop.min_delta=0.1", "trainer.lr_on_plateau.patience=2",
          "trainer.lr_on_plateau.metric=valid/auc"],
         ["min_delta=0.1: does nothing without trainer.early_stop.patience", "no split valid"]),
        (["optimizer.parts=[{pattern: x, name: 'a b'}]"], ["parts[0].name='a b': must consist of"]),
        (["optimizer.parts=[{pattern: x, frozen: 3}]"], ["frozen=3: must be true or false"]),
        (["optimizer.parts=[{pattern: x, dense: 4}]"], ["dense=4: must be a group of keys"]),
        (["model=two_tower", "model.net.memory_warmup=5"], ["no effect without model.net.memory"]),
        (["model=two_tower", "model.net.hardest=9", "model.loss.corrected=true"],
         ["model.loss.corrected=true: has no effect on what is learnt", "hardest=9 leaves"]),
        (["model=two_tower", "model.net.memory=50", "model.net.in_batch=true",
          "trainer.num_processes=2"], ["use one process, or model.net.memory=0"]),
        (["sharding.min_columns=6"], ["sharding.min_columns=6: must be a multiple of 4"]),
        (["optimizer=lbfgs", "trainer.amp=true", "trainer.amp_dtype=fp16"],
         ["loss scaling would change it; trainer.amp_dtype=bf16 works"]),
        (["dataset.conflict=1"], ["dataset.conflict=1: needs several tasks"]),
        (["dataset.mean_lengths=[3]"], ["mean_lengths=[3]: expected none, or one for each list"]),
    ],
)  # fmt: skip
def test_mistakes_of_one_group_are_told_together(command, words, said):
    message = command.refused(*words)
    assert [part for part in said if part not in message] == [], message


def test_an_exported_model_or_a_file_in_place_of_a_run_is_told(command, tmp_path_factory):
    model = tmp_path_factory.mktemp("exported")
    for name in ("manifest.json", "score.py"):
        (model / name).write_text("{}")
    for words in (["loop=eval", f"run={model}"], ["predict", str(model), "rows.csv"]):
        assert "it is an exported model: name the run that it" in command.refused(*words)
    said = command.refused(f"checkpoint.init_from={model}")
    assert "an exported model, which has no tables to learn on; name the run" in said
    file, run = str(model / "score.py"), tmp_path_factory.mktemp("run")
    (run / "meta.json").write_text("{}")
    assert "is a file, not a run directory" in command.refused("loop=eval", f"run={file}")
    said = command.refused("predict", file, str(run))
    assert f"the run is named before its input: predict {run} {file}" in said


def test_a_folder_of_runs_is_told_with_its_newest_run(command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    for number, name in enumerate(("new/b", "old")):
        (folder / name).mkdir(parents=True)
        (folder / name / "meta.json").touch()
        os.utime(folder / name / "meta.json", (9 - number, 9 - number))
    (folder / "latest").symlink_to("new/b")
    message = command.refused("resume", str(folder))
    assert f"a folder of runs, of which {folder}/new/b is the newest" in message
    assert f"`python -m runner report {folder}` lists them" in message


def test_an_option_that_lies_in_conf_here_is_told_with_the_flag_for_it(
    command, tmp_path_factory, monkeypatch
):
    folder = tmp_path_factory.mktemp("project")
    (folder / "conf" / "experiments").mkdir(parents=True)
    (folder / "conf" / "experiments" / "first.yaml").write_text("# @package _global_\n")
    monkeypatch.chdir(folder)
    message = command.refused("experiments=first")
    assert "no such option of experiments; ./conf has it: add --config-dir conf" in message


def test_ranks_that_torchrun_started_count_as_well(command, monkeypatch):
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for key, value in ranks.items():
        monkeypatch.setenv(key, value)
    assert "works in one process" in command.refused("loop=debug")
    message = command.refused("-m", "seed=1,2")
    assert (
        "start it without torchrun, and trainer.num_processes=N gives each job N ranks" in message
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE=abc: must be a whole number, at least 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0: must be a whole number, at least 1"),
        ({"RANK": "x"}, "RANK=x: must be a whole number, at least 0"),
        ({"RANK": "2"}, "RANK=2: must be less than WORLD_SIZE=2"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK=: must be a whole number, at least 0"),
        ({"LOCAL_WORLD_SIZE": "-1"}, "LOCAL_WORLD_SIZE=-1: must be a whole number, at least 1"),
        ({"MASTER_PORT": "zz"}, "MASTER_PORT=zz: must be a whole number, at least 1"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT=65536: must be at most 65535"),
        ({"MASTER_ADDR": None}, "RANK=0: without MASTER_ADDR the ranks cannot meet"),
        ({"TORCHELASTIC_MAX_RESTARTS": "1.5"}, "TORCHELASTIC_MAX_RESTARTS=1.5: must be a whole"),
    ],
)
def test_a_nonsensical_variable_of_a_launcher_is_named(variables, message):
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    environment = {k: v for k, v in (ranks | variables).items() if v is not None}
    with pytest.raises(ConfigError, match=re.escape(message)):
        launched_world_size(environment) and may_restart(environment)


def test_a_rank_that_is_no_number_is_told_without_a_traceback(command, monkeypatch):
    for name, value in {"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    assert command.refused("seed=1").strip() == (
        "error: RANK=x: must be a whole number, at least 0; a launcher such as torchrun sets this "
        "environment variable; without one, unset it"
    )


def test_all_mistakes_of_a_command_are_told_together(command):
    message = command.refused(
        "optimizer=adm", "lr=0.1", "trainer.batch_size=abc", "seed=-1", "trainer.amp_dtype=fp8"
    )
    assert message.startswith("error: 5 mistakes")
    for part in ("optimizer=adm", "lr=0.1", "batch_size=abc", "seed=-1", "amp_dtype=fp8"):
        assert part in message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", b"trainer: {max_steps: 3}\n",
         "the first line of an experiment's file must be `# @package _global_`"),
        ("a.yaml", b"# @package _global_\ntrainer.max_steps: 3\n",
         "a file has no keys with dots but groups of keys: trainer: {max_steps: 3}\n"),
        ("a.yaml", b"# @package _global_\nmodel.net.layers: 3\ndataset: {rows.train: 9}\n",
         "a file has no keys with dots but groups of keys: dataset: {rows: {train: 9}}\n"),
        ("a.yaml", b"# @package _global_\nname: gr\xfcn\n", "experiments/a.yaml: is not UTF-8: "),
        ("a.yml", b"# @package _global_\n", "experiments/a.yml: must be named .yaml; exp"),
    ],
)  # fmt: skip
def test_a_file_of_ones_own_that_is_written_wrongly_is_told(
    command, tmp_path_factory, name, content, said
):
    folder = tmp_path_factory.mktemp("own")
    (folder / "experiments").mkdir()
    (folder / "experiments" / name).write_bytes(content)
    assert said in command.refused("--config-dir", str(folder), "experiments=a")


def test_an_experiment_with_a_misspelt_key_is_refused_though_hydra_merges_it(
    command, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("own")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "mine.yaml").write_text(
        "# @package _global_\n"
        "trainer: {max_step: 10}\n"
        "model: {net: {embeding_dim: 3}}\n"
        "optimzer: {dense: {lr: 1}}\n"
    )
    message = command.refused("--config-dir", str(folder), "experiments=mine")
    assert "trainer.max_step=10: there is no key 'trainer.max_step'" in message
    assert "is not a setting of DLRM; nearest: 'embedding_dim'" in message
    assert "there is no key 'optimzer'; nearest: 'optimizer'" in message


def test_a_yaml_that_cannot_be_read_is_named(command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "model").mkdir()
    (folder / "model" / "broken.yaml").write_text("net: {a: [1\n")
    assert "broken.yaml" in command.refused("--config-dir", str(folder), "model=broken")


def test_the_traceback_is_shown_on_request(command):
    code, _, err = command("seed=-1", "trainer.traceback=true")
    assert code == 2
    assert "Traceback" in err


def test_an_unwritable_place_is_refused_before_data_is_read(command, tmp_path_factory):
    file = tmp_path_factory.mktemp("place") / "file"
    file.write_text("mine")
    message = command.refused(f"hydra.run.dir={file}/run")
    assert "cannot write the run directory" in message
    assert "hydra.run.dir=DIR" in message
    message = command.refused(f"hydra.run.dir={file}")
    assert str(file) in message
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["checkpoint.monitor.direction=min"], "max is better for validation/auc; checkpoint.mon"),
        (["trainer.batch_on_plateau.patience=2", "trainer.batch_on_plateau.max_rows=33"],
         "max_rows=33: leaves no room to grow: an update has 4,096 rows"),
        (["trainer.device=cuda:0", "trainer.num_processes=2"], "each of 2 ranks takes another GPU"),
        (["sharding=disk", "optimizer.sparse.l2_tables=0.1"],
         "sharding: a table on disk: optimizer.sparse.l2_tables needs a copy of it in memory"),
        (["sharding=disk", "loop=tune_lr"], "sharding: a table on disk: the tuning loops keep a c"),
        (["optimizer.sparse.l2_tables=0.1"], "reaches every row at every update, and un"),
        (["task._target_=runner._x"], "task._target_=runner._x: not the dotted name of a public"),
        (["search=tpe", "search.space={x: [1,2]}"], "given key by key, such as optimizer.dense.l"),
        (["search=tpe", "~search.space.optimizer.sparse.lr"], "lr=0.01, is not searched"),
        (["search=tpe", "search.space={seed: choice(1,2)}"], "or optimizer.dense.lr=interval(0.00"),
        (["trainer={max_step: 5}"], "there is no key 'trainer.max_step'; nearest: 'trainer.max_st"),
        (["-m", "seed=range(1,2,0)"], "its values cannot be listed (range() arg 3 must not be z"),
        (["-m", "model=glob(zz*)"], "model=glob(zz*): a sweep over nothing"),
        (["--cfg", "job", "--package", "trainr"], "no such group of keys; nearest: 'trainer'"),
        (["remote=ray", "loop=debug"], "is for loop=train and loop=online; leave it out"),
        (["metrics.leave_seen_out=true"], "metrics.leave_seen_out=true: is about rankings of all"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_each_refusal_says_what_to_do(command, words, said):
    assert said in command.refused(*words)


def test_a_key_of_an_option_that_does_not_exist_is_no_mistake_of_its_own(command):
    message = command.refused("dataset=parqet", "dataset.schema=clicks.yaml")
    assert "dataset=parqet: no such option of dataset; nearest: 'parquet'" in message
    assert "dataset.schema" not in message


@pytest.mark.parametrize("group", ["scheduler", "model"])
def test_a_part_that_is_not_named_is_told_once(command, group):
    message = command.refused(f"{group}=own")
    missing = message.count("has no default and must be given")
    assert missing == {"scheduler": 1, "model": 2}[group] == message.count("_target_: ")
    assert "not the dotted name" not in message


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("+hydra.run.dir=x", "+hydra.run.dir=x: there is the key hydra.run.dir already"),
        ("hydra/launcher=nope", "hydra/launcher=nope: must be one of basic"),
        ("hydra.launcher.foo=2", "To append to your config use +hydra.launcher.foo=2"),
    ],
)
def test_what_is_wrong_about_hydras_own_keys_is_told_with_other_mistakes(command, word, said):
    code, _, told = command(word, "trainer.max_stps=3")
    assert code == 2 and "2 mistakes" in told
    assert said in told and "there is no key 'trainer.max_stps'" in told


def test_a_length_in_a_dictionary_displaces_that_of_a_file():
    trainer = compose(["trainer={max_steps: 5}"]).config["trainer"]
    assert (trainer["max_steps"], trainer["max_epochs"]) == (5, None)


def test_two_lengths_are_refused_also_in_a_dictionary(command):
    _, _, told = command("trainer={max_steps: 5, max_epochs: 2}")
    assert "trainer={max_steps: 5, max_epochs: 2}: give one of them" in told
