"""Checkpoints: written atomically, verified before they are used, and never pickled.

checkpoints/step-N/          a checkpoint, which gets its name by one rename once it is on the disk
    shard-00001.safetensors  the tensors of rank 0, with their offsets in the whole in the header
    state.json               everything that is not a tensor
    manifest.json            size and sha256 of the other files, written last
checkpoints/.tmp-*           an unfinished save or removal; removed at the next start
checkpoints/.old-step-N      a checkpoint that a second save of step N is replacing

The modules that read no tensors (`folder`, `manifest`) import no torch. Public names are
therefore listed in `__init__.pyi` and imported at their first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
