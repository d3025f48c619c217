"""The collector: takes bundles from boards over MQTT, keeps them, compares them layer by layer, shows the result."""
