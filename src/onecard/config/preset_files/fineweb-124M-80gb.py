# Advice in circulation for 80 GB (A100, H100), labelled 350M: it is 123.59M.
out_dir = "out-fineweb-124M-80gb"
dataset = "fineweb-edu"
batch_size = 64
gradient_accumulation_steps = 8
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768
learning_rate = 6e-4
min_lr = 6e-5
max_iters = 20000
lr_decay_iters = 20000
warmup_iters = 700
