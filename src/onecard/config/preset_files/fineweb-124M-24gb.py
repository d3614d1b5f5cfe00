# Advice in circulation for 24 GB (4090), labelled 350M: it is 123.59M, and too tight without a saver.
out_dir = "out-fineweb-124M-24gb"
dataset = "fineweb-edu"
batch_size = 32
gradient_accumulation_steps = 16
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768
learning_rate = 5e-4
min_lr = 5e-5
max_iters = 60000
lr_decay_iters = 60000
warmup_iters = 2000
