# nanoGPT's config/finetune_shakespeare.py, without its time stamp: GPT-2 XL tuned on Shakespeare.
out_dir = "out-shakespeare"
eval_interval = 5
eval_iters = 40
wandb_log = False
wandb_project = "shakespeare"
wandb_run_name = "ft"
dataset = "shakespeare"
init_from = "gpt2-xl"
always_save_checkpoint = False
batch_size = 1
gradient_accumulation_steps = 32
max_iters = 20
learning_rate = 3e-5
decay_lr = False
