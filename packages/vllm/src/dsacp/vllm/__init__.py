"""dsacp as a plug-in of vLLM and vllm-ascend."""
