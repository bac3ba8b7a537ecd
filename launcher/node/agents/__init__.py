"""The agent, which starts processes on a node for a controller that can't log in there. It is sent by itself.

The launch host starts it over SSH ("plants" it). It dials the controller over TLS, accepts only the certificate that it
was told, proves itself with a token, and then is to the controller what sshd is to a launcher.
"""
