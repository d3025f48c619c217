"""`tidegauge lint`: what TIDL will do to a model, said before it is compiled."""
