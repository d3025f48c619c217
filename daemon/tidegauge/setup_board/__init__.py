"""What `tidegauge setup` finds on a board, and the `agent.toml` that it writes."""
