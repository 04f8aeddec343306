import java.net.InetSocketAddress;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.ql.txn.AcidHouseKeeperService;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** Hive's metastore over Derby, on loopback: its own main class listens on all addresses. */
public final class Metastore {
  public static void main(String[] arguments) throws Exception {
    var port = Integer.parseInt(arguments[0]);
    var conf = new HiveConf();
    var handler = HiveMetaStore.newRetryingHMSHandler("metastore", conf, true);
    TxnDbUtil.setConfValues(conf);
    TxnDbUtil.prepDb(conf);
    // As its own main class does: locks whose holders have gone are removed by this service alone.
    if (conf.getBoolVar(HiveConf.ConfVars.HIVE_COMPACTOR_INITIATOR_ON)) {
      new AcidHouseKeeperService().start(conf);
    }
    var socket = new TServerSocket(new InetSocketAddress("127.0.0.1", port));
    var settings =
        new TThreadPoolServer.Args(socket).processor(new TSetIpAddressProcessor<>(handler));
    new TThreadPoolServer(settings).serve();
  }
}
