// A transaction of kafkajs with a record and a group's offset:
// node transaction.js BOOTSTRAP TOPIC GROUP
const { Kafka, logLevel } = require('kafkajs')

const TRIES = 10

async function main(bootstrap, topic, groupId) {
  // By default kafkajs gives up after six tries, which a busy machine's new topics outlast.
  const kafka = new Kafka({
    brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry: { retries: 20 },
  })
  const producer = kafka.producer({
    transactionalId: `of-${groupId}`, maxInFlightRequests: 1, idempotent: true,
  })
  await producer.connect()
  for (let tries = 1; !(await isCommitted(producer, topic, groupId)); tries += 1) {
    if (tries === TRIES) throw new Error(`no coordinator of the group in ${TRIES} transactions`)
  }
  await producer.disconnect()
}

async function isCommitted(producer, topic, groupId) {
  const transaction = await producer.transaction()
  try {
    await transaction.send({ topic, messages: [{ value: 'one' }] })
    await transaction.sendOffsets({
      consumerGroupId: groupId,
      topics: [{ topic, partitions: [{ partition: 0, offset: '1' }] }],
    })
    await transaction.commit()
    return true
  } catch (error) {
    // While the group's coordinator loads, TxnOffsetCommit v1 has no other error, as Apache Kafka's,
    // and kafkajs does not send it again.
    if (error.type !== 'GROUP_COORDINATOR_NOT_AVAILABLE') throw error
    await transaction.abort()
    return false
  }
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(`${error.name}: ${error.message}`)
  process.exit(1)
})
