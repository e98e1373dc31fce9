"""The rendezvous server, under the name it had when it spoke HTTP."""
