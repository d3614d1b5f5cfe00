# Measured on an RTX 4070: 123.59M, 9.34 s a step. Advice in circulation for 12 GB.
out_dir = "out-fineweb-124M-12gb"
dataset = "fineweb-edu"
batch_size = 8
gradient_accumulation_steps = 64
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768
learning_rate = 3e-4
min_lr = 3e-5
max_iters = 20000
lr_decay_iters = 20000
warmup_iters = 700
