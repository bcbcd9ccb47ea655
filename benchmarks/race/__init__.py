"""rcjax raced against what a user would pick instead, and stretched to its own limits."""
