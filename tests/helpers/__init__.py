"""Helpers that several tests share: logs, servers, clients, references and own families."""
