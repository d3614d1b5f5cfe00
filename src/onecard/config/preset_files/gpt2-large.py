# gpt2-large as released: 774.0M parameters (vocabulary 50257, biases), trained on 10 B tokens in batches of 0.5M.
# Learning rates: GPT-3's table 2.1 for the size (Brown et al. 2020), as llm.c uses them.
out_dir = "out-gpt2-large"
dataset = "fineweb-edu"
block_size = 1024
max_iters = 19073  # one pass over 10 B tokens
lr_decay_iters = 19073
warmup_iters = 700
batch_size = 2
gradient_accumulation_steps = 256
n_layer = 36
n_head = 20
n_embd = 1280
vocab_size = 50257
bias = True
learning_rate = 2.5e-4
min_lr = 2.5e-5
