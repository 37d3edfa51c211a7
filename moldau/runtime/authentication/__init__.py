"""Who a peer is: TLS contexts and the client side of SASL. Brokers among themselves will need it
as clients do.
"""
