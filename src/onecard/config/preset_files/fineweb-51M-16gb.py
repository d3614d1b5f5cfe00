# Advice in circulation for 16–20 GB (4080), labelled 125M: it is 50.93M.
out_dir = "out-fineweb-51M-16gb"
dataset = "fineweb-edu"
batch_size = 32
gradient_accumulation_steps = 12
block_size = 1024
n_layer = 8
n_head = 8
n_embd = 512
learning_rate = 6e-4
min_lr = 6e-5
max_iters = 20000
lr_decay_iters = 20000
warmup_iters = 700
