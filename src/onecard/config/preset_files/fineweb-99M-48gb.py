# Advice in circulation for 48 GB (A6000), labelled 250–300M: it is 98.85M, with 56-wide heads.
out_dir = "out-fineweb-99M-48gb"
dataset = "fineweb-edu"
batch_size = 32
gradient_accumulation_steps = 16
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 672
learning_rate = 6e-4
min_lr = 6e-5
max_iters = 20000
lr_decay_iters = 20000
warmup_iters = 700
