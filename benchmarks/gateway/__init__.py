"""What `rcjax serve` adds to the calls that go through it, beside calls without it and LiteLLM's proxy."""
