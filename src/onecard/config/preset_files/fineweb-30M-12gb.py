# Advice in circulation for under 16 GB (4070 Ti), labelled 84M: it is 29.94M.
out_dir = "out-fineweb-30M-12gb"
dataset = "fineweb-edu"
batch_size = 16
gradient_accumulation_steps = 24
block_size = 1024
n_layer = 6
n_head = 6
n_embd = 384
learning_rate = 6e-4
min_lr = 6e-5
max_iters = 20000
lr_decay_iters = 20000
warmup_iters = 700
