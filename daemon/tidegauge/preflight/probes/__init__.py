"""The checks of `tidegauge check`, one file each."""
