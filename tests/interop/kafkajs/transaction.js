// A transaction of kafkajs with a record and a group's offset:
// node transaction.js BOOTSTRAP TOPIC GROUP
const { Kafka, logLevel } = require('kafkajs')

async function main(bootstrap, topic, groupId) {
  // By default kafkajs gives up after six tries, which a busy machine's new topics outlast.
  const kafka = new Kafka({
    brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry: { retries: 20 },
  })
  const producer = kafka.producer({
    transactionalId: `of-${groupId}`, maxInFlightRequests: 1, idempotent: true,
  })
  await producer.connect()
  const transaction = await producer.transaction()
  await transaction.send({ topic, messages: [{ value: 'one' }] })
  await transaction.sendOffsets({
    consumerGroupId: groupId,
    topics: [{ topic, partitions: [{ partition: 0, offset: '1' }] }],
  })
  await transaction.commit()
  await producer.disconnect()
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(`${error.name}: ${error.message}`)
  process.exit(1)
})
