"""The cards: memory, bandwidth, dense tensor rates per dtype and accumulator, from gpus.csv with source and confidence.

>>> find_gpu("rtx4070").name
'RTX 4070'
>>> round(find_gpu("4070 Ti").peak_flops("float32") / 1e12, 1)
40.1
"""
