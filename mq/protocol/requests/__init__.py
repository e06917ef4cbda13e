"""The requests, one module per family. A code's request, header fields, response and bodies are defined together.

- `broker`: 25, 26, 28, 306, 315, 316, 329
- `topics`: 17, 18, 21, 202, 215, 305, 351
- `deleted_topics`: 9019, 9023
- `send`: 10, 36, 310, 320, 370
- `request_reply`: 324 to 326, 9003
- `transactions`: 37, 39, 323, 9011
- `schedules`: 9012 to 9016
- `pending`: 9017
- `pull`: 11, 361
- `pop`: 200050 to 200055, 200151
- `lite`: 200070 to 200079
- `offsets`: 14, 15, 29 to 32
- `queries`: 12, 33, 303, 321
- `bulk`: 9006 to 9009, 9029
- `clients`: 34, 35, 38, 40 to 42, 46
- `consumer_groups`: 200, 201, 203, 204, 207, 225, 300, 328, 343, 345, 352, 353
- `group_progress`: 43, 45, 208, 220, 222, 308, 314, 317, 9010
- `assignment`: 400 to 402
- `relayed`: 221, 223, 307, 309
- `filters`: 301, 302, 9020 to 9022
- `users`: 3001 to 3010
- `quotas`: 9024, 9025
- `accounts`: 9028
- `removed_members`: 9026, 9027
- `many_queues`: 9030
- `members`: 9031
- `topic_use`: 9032
- `namesrv`: 100 to 102, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311 to 313, 318, 319, 327, 901
- `registration`: 103, 104, 322, 904
- `raft_group`: 9001
- `replicas`: 9002, 9004, 9005, 9018

The other modules encode and decode parts of them.
"""
