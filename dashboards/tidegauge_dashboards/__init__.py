"""The source of everything in `dashboards/`: Prometheus rules, Alertmanager routes, Grafana dashboards and alerting."""
