"""What the processes of forked.py begin with, beside onecard itself: imported once, in the server that they are forked from."""

import contextlib
import gc

with contextlib.suppress(ImportError):  # only where the extra `train` is installed
    import pyarrow.parquet
    import torch.distributed.fsdp
    import torch.distributed.run

    from onecard.data import gpt2
    from onecard.data.preparation import worker

    gpt2().encode("")  # loads its engine

gc.freeze()  # the collectors of those processes leave all this alone
__all__ = ["pyarrow", "torch", "worker"]
