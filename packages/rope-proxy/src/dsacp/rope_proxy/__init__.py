"""RoPE tables, registry and address-stable banks for draft steps."""
