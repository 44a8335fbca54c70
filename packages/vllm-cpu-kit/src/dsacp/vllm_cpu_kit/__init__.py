"""What a CPU needs to run a tiny DeepSeek-V4 with MTP in vLLM."""
