"""MQTT adapter and the transfer protocol."""
